"""All that shows a mirror's status says the same: JSON, the table, /metrics and `monitor`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirrord.control.commands.history import history
from mirrord.control.documents import of_status
from mirrord.control.monitor import judge
from mirrord.control.statustext import details, table
from mirrord.core.errors import TransferFailed
from mirrord.core.live import LiveReading, LiveStatus
from mirrord.core.model import Caps, Definition, Endpoint, Promise
from mirrord.core.records import AlarmKind, AlarmRecord, Finding, Level, TransferRecord
from mirrord.core.reports import History
from mirrord.core.results import UpdateNumbers, VerbProgress
from mirrord.core.states import Activity, State
from mirrord.core.status import MirrorStatus, Reading, RunningVerb, Supervision
from mirrord.core.status import judge as status_of
from mirrord.core.units import format_duration, format_size
from mirrord.daemon.metrics import Metrics
from mirrord.daemon.running import Running
from mirrord.daemon.status_store import StatusStore
from mirrord.scheduler.jobs import Job, Outcome
from mirrord.scheduler.scheduler import Scheduler
from mirrord.scheduler.watched import Standing
from mirrord.system import clock
from mirrord.wire.values import pack, unpack
from tests.unit.ticking import Hand, HandTimers, every

STATES = 1000
MIRRORS = ("a", "b", "c")
FAULT = Finding(AlarmKind.DESTINATION, Level.ERROR, "the destination is another disk")


class Host:
    """A daemon's scheduler, status and metrics, with clocks moved by hand."""

    def __init__(self, hand: Hand, chance: random.Random) -> None:
        self.hand, self.chance = hand, chance
        self.started: list[Job] = []
        self.scheduler = Scheduler(
            HandTimers(hand),
            self.started.append,
            caps=Caps(9, 9, 9),
            chance=chance,
            told=lambda _name, _change: None,
        )
        self.store = StatusStore(self.scheduler)
        self.metrics = Metrics(self.scheduler, self.store, lambda: ())

    def mirror(self, name: str) -> None:
        """Define a mirror in any state, as a probe of its ends has found it."""
        chance, end = self.chance, Endpoint("memory", f"/{name}")
        mirrored, quiesced = chance.random() < 0.8, chance.random() < 0.2
        age_s = chance.choice([0.0, 5.0, 59.9, 600.0, 9000.0])
        confirmed_ns = clock.now_ns() - round(age_s * 1e9) if chance.random() < 0.9 else 0
        faults = (FAULT,) if chance.random() < 0.2 else ()
        base_risk = "the base was deleted" if chance.random() < 0.1 else ""
        schedule = every("every 1m") if chance.random() < 0.5 else None
        promise = Promise(chance.choice([None, 4.0, 60.0, 3600.0]))
        standing = Standing(mirrored, quiesced, confirmed_ns)
        definition = Definition(name, f"id-{name}", end, end, promise=promise)
        self.scheduler.define(definition, schedule, standing)
        state = State.MIRRORED
        if not mirrored:
            state = chance.choice([State.BROKEN_OFF, State.UNINITIALIZED])
        reading = Reading(
            name,
            definition.id,
            state=state,
            faults=faults,
            base_risk=base_risk,
            quiesced=quiesced,
            confirmed_ns=confirmed_ns,
            schedule=("every 1m",) if schedule else (),
            rpo_s=promise.rpo_s,
        )
        self.store.readings[name] = reading
        self.scheduler.found(name, reading)
        if chance.random() < 0.3 and self.scheduler.due(name, "asked", "asked for"):
            self.run(name)

    def run(self, name: str) -> None:
        """A run that goes on, or has ended."""
        running = Running("update", self.scheduler.mirrors[name])
        if self.chance.random() < 0.5:
            self.store.running[name] = running
            running.transfer("snapshot", 1 << 30, 0)
            self.hand.sleep_s(self.chance.choice([1.0, 40.0]))
            running.moved(self.chance.choice([0, 1 << 20]))
            return
        error = TransferFailed("the connection was lost") if self.chance.random() < 0.7 else None
        update = None if error else UpdateNumbers(clock.now_ns())
        self.scheduler.finished(name, Outcome("" if error else "done", 1.0, update, error))

    def gauges(self) -> dict[str, dict[str, float]]:
        """What /metrics shows, by name and mirror."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.metrics.text()[0].decode()):
            for sample in family.samples:
                if "kind" not in sample.labels and "mirror" in sample.labels:
                    found.setdefault(sample.name, {})[sample.labels["mirror"]] = sample.value
        return found

    def alarms_shown(self) -> set[tuple[str, str, str]]:
        """The alarms in /metrics, as mirror, kind and level."""
        return {
            (sample.labels["mirror"], sample.labels["kind"], sample.labels["level"])
            for family in text_string_to_metric_families(self.metrics.text()[0].decode())
            for sample in family.samples
            if sample.name == "mirrord_alarm" and sample.value == 1
        }


@pytest.fixture
def hand() -> Iterator[Hand]:
    made = Hand()
    clock.use(made)
    yield made
    clock.use(None)


def agree(host: Host) -> None:
    rows = host.store.rows()
    gauges = host.gauges()
    alarms = [
        AlarmRecord(0, row.reading.id, *alarm, 0, None, row.name)
        for row in rows
        for alarm in row.alarms
    ]
    assert host.alarms_shown() == {(a.mirror, a.kind, a.level) for a in alarms}
    lines = table(rows)[1:]
    for row, line in zip(rows, lines, strict=True):
        name, cells = row.name, [cell.strip() for cell in line.split("  ") if cell]
        shown = json.loads(json.dumps(of_status(row)))
        for key, gauge, value, digits in (
            ("lag_s", "lag_seconds", row.lag_s, 3),
            ("rpo_s", "rpo_seconds", row.reading.rpo_s, 9),
            ("rpo_used", "rpo_used_ratio", row.lag.used, 4),
        ):
            assert gauges.get(f"mirrord_{gauge}", {}).get(name) == value, (row, gauge)
            assert shown[key] == (None if value is None else round(value, digits)), (row, key)
        assert gauges["mirrord_mirrored"][name] == (shown["state"] == "mirrored")
        assert gauges["mirrord_quiesced"][name] == shown["quiesced"]
        assert gauges["mirrord_running"][name] == (shown["running"] is not None)
        assert cells[:2] == [name, shown["state"]]
        assert cells[2].split()[0].rstrip(",") == shown["activity"]
        lag = format_duration(row.lag_s) if row.lag_s is not None else "-"
        assert cells[3] == lag and (lag == "-" or f"lag          {lag}" in "\n".join(details(row)))
        assert shown["healthy"] == (not shown["problems"])
        assert ("!" in line) == (not shown["healthy"]), line
        verdict = judge([row], [a for a in alarms if a.mirror == name], service_runs=True)
        exceeded = shown["rpo_used"] is not None and shown["rpo_used"] >= 1
        assert not (exceeded and shown["healthy"]), row
        assert (verdict.status > 0) == (not shown["healthy"]), (verdict, row)
        assert verdict.status == 2 or all(a.level != "error" for a in row.alarms)
        if row.lag_s is not None:
            assert f"'{name}'={row.lag_s:.0f}s" in verdict.line
        assert unpack(MirrorStatus, json.loads(json.dumps(pack(row)))) == row


def test_status_alarms_and_metrics_agree_in_any_state(hand: Hand) -> None:
    healthy = running = alarmed = 0
    for seed in range(STATES):
        host = Host(hand, random.Random(seed))
        for name in MIRRORS:
            host.mirror(name)
        hand.sleep_s(host.chance.choice([0.0, 30.0, 300.0]))
        for name in MIRRORS:
            host.scheduler.check(name)
        agree(host)
        rows = host.store.rows()
        healthy += sum(row.healthy for row in rows)
        running += sum(row.running is not None for row in rows)
        alarmed += sum(bool(row.alarms) for row in rows)
    assert min(healthy, running, alarmed) > 100


#: By the key of the JSON document: the metric, and how many of the key's units are one of its own.
_WINDOW_GAUGES = {
    "window_bytes": ("mirrord_live_window_bytes", 1),
    "window_us": ("mirrord_live_window_seconds", 1_000_000),
    "lag_limit_bytes": ("mirrord_live_lag_limit_bytes", 1),
    "lag_bytes": ("mirrord_live_lag_bytes", 1),
    "lag_us": ("mirrord_lag_seconds", 1_000_000),
}


def _live(host: Host, name: str) -> None:
    """Define a live mirror whose primary is in any of these modes."""
    host.mirror(name)
    chance = host.chance
    state = chance.choice(["in-sync", "semi-sync", "semi-sync", "out-of-sync"])
    limit = chance.choice([1 << 16, 3 << 20])
    primary = LiveStatus(
        role="primary",
        state=state,
        mode="sync" if state == "in-sync" else "semi-sync",
        generation=2,
        in_sync=state == "in-sync",
        since=1,
        window_bytes=chance.choice([limit, 1 << 30]),
        window_us=chance.choice([0, 0, 500_000]),
        lag_limit_bytes=limit,
        lag_bytes=chance.choice([0, 4096, 70_000]),
        lag_us=chance.choice([0, 900, 1_400_000]),
        window_full=state == "semi-sync" and chance.random() < 0.5,
    )
    live = LiveReading("dynamic", primary, None, clock.now_ns())
    reading = host.store.readings[name]
    host.store.readings[name] = reading._replace(state=State.MIRRORED, live=live)


def test_window_and_lag_of_live_mirrors_agree(hand: Hand) -> None:
    for seed in range(100):
        host = Host(hand, random.Random(seed))
        for name in MIRRORS:
            _live(host, name)
        rows, gauges = host.store.rows(), host.gauges()
        semi = 0
        header, *lines = table(rows)
        for row, line in zip(rows, lines, strict=True):
            found = json.loads(json.dumps(of_status(row)))["live"]["source"]
            is_semi = found["state"] == "semi-sync"
            semi += is_semi
            shown = [each for each in details(row) if each.startswith("  window ")]
            full = gauges["mirrord_live_window_full"][row.name]
            assert full == found["window_full"] and bool(shown) == is_semi
            for key, (gauge, units) in _WINDOW_GAUGES.items():
                value = gauges.get(gauge, {}).get(row.name)
                if is_semi:
                    missing = key == "window_us" and not found[key]
                    assert value == (None if missing else found[key] / units), (gauge, found)
                else:
                    assert value is None or key == "lag_us", (gauge, found)
            if not is_semi:
                continue
            lag, limit = format_size(found["lag_bytes"]), format_size(found["lag_limit_bytes"])
            cell = f"{lag} of {limit}"
            if found["window_us"]:
                cell = f"{lag}, {shown[0].split(', ')[1].removesuffix(' behind')} of 0.5 s"
            assert f"  {cell}  " in line, (cell, line)
            assert f" {lag}, " in shown[0] and limit in shown[0]
            assert ("full, writes wait" in shown[0]) == found["window_full"]
        assert ("WINDOW" in header) == (semi > 0)


def test_a_transfer_is_shown_as_running_only_while_a_process_runs() -> None:
    row = TransferRecord(
        "t1", "update", None, "", "g1", "s1", "running", 1, 0, 0, 0, 0, 0, "", "", 0, "", None, "",
    )  # fmt: skip
    reading = Reading("home", "id", state=State.MIRRORED, last_transfer=row)
    assert "  last         interrupted: full" in details(status_of(reading, now_ns=1))
    running = RunningVerb(1, "mirrord update", VerbProgress(Activity.TRANSFERRING))
    found = status_of(reading, now_ns=1, running=running)
    assert "  last         running: full" in details(found)


def test_the_next_run_is_shown_with_its_date() -> None:
    reading = Reading("home", "id", state=State.MIRRORED, schedule=("weekly",))
    at_ns = 1_796_000_000 * 10**9
    found = status_of(reading, now_ns=1, supervision=Supervision(None, next_ns=at_ns))
    shown = datetime.fromtimestamp(at_ns // 10**9)
    assert f"  schedule     weekly; next {shown}" in details(found)


def test_history_shows_why_a_transfer_was_full() -> None:
    reason = "the destination has no complete snapshot to update from"
    row = TransferRecord(
        "t1", "update", None, reason, "g1", "s1", "done", 1, 1000, 5 << 20, 0, 0, 0, "", "", 0, "",
        None, "",
    )  # fmt: skip
    later = row._replace(base="g1", full_reason="", name="s2", recorded=1)
    assert history.text is not None
    lines = list(history.text(History("home", (later, row), (), ()), {"limit": 9}))[-2:]
    assert lines[0].splitlines()[1:] == [f"    full transfer: {reason}"]
    assert len(lines[1].splitlines()) == 1
