"""Metrics, alert rules and the dashboard: what they say of each other is so."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrord.control.client import _Connection
from tests.docs.promtool import promtool
from tests.support.service import until
from tests.support.unit import OWN, ROOT, Daemon, daemon, environment

RULES = ROOT / "docs/prometheus/mirrord.rules.yml"
DASHBOARD = ROOT / "docs/grafana/mirrord.json"
_NAME = re.compile(r"\bmirrord_[a-z_]+[a-z]\b")
#: What Prometheus adds to the name of a histogram.
_PARTS = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def tool() -> str:
    return promtool()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """/metrics of a service with two block mirrors that have done all sorts of things, and a live
    mirror in semi-sync.
    """
    folder = tmp_path_factory.mktemp("metrics")
    with daemon(folder / "home") as service:
        for name, schedule in (("one", "every 10m"), ("two", "lag 5m")):
            _did(service, "volume", "create", f"{folder}/{name}", "16M")
            ends = [f"block:{folder}/{name}", f"block:{folder}/copy-{name}"]
            _did(service, "create", name, *ends, "--schedule", schedule, "--rpo", "30m")
            _did(service, "initialize", name)
            _did(service, "verify", name)
        (folder / "image").write_bytes(bytes(1 << 20))
        ends = [f"image:{folder}/{name}" for name in ("image", "image-copy")]
        _did(service, "create", "vm", *ends, "--policy", "semi-sync", "--window", "5s")
        _did(service, "initialize", "vm")
        _checkpoint(service, folder)
        until(lambda: "mirrord_live_lag_bytes{" in _get(service, "/metrics"))
        yield _get(service, "/metrics")
        _did(service, "delete", "vm", "--yes")


def _did(service: Daemon, *words: str) -> None:
    done = service.run(*words)
    assert done.returncode == 0, done.stderr


def _checkpoint(service: Daemon, folder: Path) -> None:
    """An update that breaks off in the middle: a checkpoint, an alarm, a failed run."""
    image = folder / "content"
    image.write_bytes(bytes(range(256)) * 4096 * 4)
    _did(service, "volume", "write", str(folder / "two"), "--from", str(image))
    _did(service, "throttle", "two", "200KiB/s")
    working = subprocess.Popen(
        [OWN, "update", "two"],
        env=environment(service.home),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    for _ in range(200):
        row = json.loads(service.run("status", "--json").stdout)["mirrors"][1]
        if row["running"] and row["running"].get("done_bytes", 0) > 1 << 20:
            break
    _did(service, "abort", "two")
    working.wait(timeout=90)
    definition = service.home / "etc/mirrors.d/one.toml"
    hooks = '[site.primary.hooks]\nbefore_snapshot = ["/bin/false"]\n'
    definition.write_text(definition.read_text() + hooks)
    _did(service, "volume", "write", str(folder / "one"), "--from", str(image))
    assert service.run("update", "one").returncode == 1


def _get(service: Daemon, path: str) -> str:
    connection = _Connection(service.home / "run/status.sock")
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def documented() -> dict[str, tuple[str, set[str]]]:
    """Of docs/metrics.md: name -> type and labels."""
    found = {}
    for line in (ROOT / "docs/metrics.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `mirrord_"):
            name, kind, labels = (cell.strip() for cell in line.split("|")[1:4])
            found[name.strip("`")] = (kind, set(re.findall(r"`(\w+)`", labels)))
    return found


def printed(page: str) -> dict[str, tuple[str, set[str]]]:
    """Of a page: name -> type and labels; without the times of creation."""
    kinds = dict(re.findall(r"^# TYPE (mirrord_\w+) (\w+)$", page, re.MULTILINE))
    found: dict[str, tuple[str, set[str]]] = {
        name: (kind, set()) for name, kind in kinds.items() if not name.endswith("_created")
    }
    for sample, labels in re.findall(r"^(mirrord_\w+?)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
        name = sample if sample in kinds else _whole(sample)
        if not name.endswith("_created"):
            found[name][1].update(set(re.findall(r"(\w+)=", labels)) - {"le"})
    return found


def _whole(name: str) -> str:
    for part in _PARTS:
        if name.endswith(part):
            return name.removesuffix(part)
    return name


def test_every_metric_is_documented_as_it_is(page: str) -> None:
    there = printed(page)
    assert there.keys() == documented().keys()
    for name, (kind, labels) in documented().items():
        assert there[name][0] == kind, name
        # What no sample has yet (no retry happened) cannot be compared.
        assert there[name][1] in (labels, set()), name
    bare = {name for name, (_, labels) in there.items() if not labels and documented()[name][1]}
    assert bare == {
        "mirrord_retries_total",
        "mirrord_failed_commands_total",
        "mirrord_pause_seconds",  # tests/pausers has one
    }


def test_the_page_is_as_prometheus_wants_it(tool: str, page: str) -> None:
    done = subprocess.run([tool, "check", "metrics"], input=page, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rules_are_right_and_do_what_they_say(tool: str) -> None:
    folder = ROOT / "docs/prometheus"
    for words in (["check", "rules", RULES.name], ["test", "rules", "mirrord.rules.test.yml"]):
        done = subprocess.run([tool, *words], cwd=folder, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_tested() -> None:
    rules = re.findall(r"- alert: (\w+)", RULES.read_text())
    tests = (ROOT / "docs/prometheus/mirrord.rules.test.yml").read_text()
    assert len(rules) == len(set(rules)) > 5
    for rule in rules:
        after = tests.split(f"alertname: {rule}\n")[1:]
        assert any("exp_labels" in each.split("alertname:")[0] for each in after), rule


def expressions() -> list[str]:
    return [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ]


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    known = documented()
    names = set(_NAME.findall(RULES.read_text()) + _NAME.findall(" ".join(expressions())))
    assert len(names) > 15
    assert {_whole(name) for name in names} <= known.keys()


def test_the_expressions_of_the_dashboard_are_promql(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    rules = [
        {"record": f"mirrord:panel{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(expressions())
    ]
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([tool, "check", "rules", file], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_what_grafana_needs() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == dashboard["title"] == "mirrord"
    assert dashboard["schemaVersion"] >= 36
    assert "id" not in dashboard  # it would be taken for another dashboard's
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat", "table")
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["expr"]
            assert target["refId"]
            assert target["datasource"]["type"] == "prometheus"
            used = set(re.findall(r"\$\{?(\w+)", json.dumps(target))) - {"__rate_interval"}
            assert used <= variables
