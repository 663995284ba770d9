"""Policies that change the mode: their keys, what is done with what they say, their failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.hosts import Hosts
from mirrord.config.reading import parse_both
from mirrord.config.writing import render, with_policy
from mirrord.core.dynamickeys import DynamicKeys
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.live import LiveStatus, Mode
from mirrord.core.policies import PolicyKeys, ScheduledKeys
from mirrord.core.results import Silent
from mirrord.core.states import State
from mirrord.drivers.live import Live
from mirrord.engine.progress import RunFiles
from mirrord.live.deciding import Decider
from mirrord.live.mirror import Book, LiveMirror
from mirrord.live.serving import set_mode
from mirrord.live.steering import apply, observation_of, steer
from mirrord.live.supervise import look_after
from mirrord.policies.dynamic import Dynamic
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import AnyPolicy, Count, Directive, Observation
from mirrord.policies.registry import open_policy
from mirrord.system import locks
from mirrord.system.waiting import Waiting
from tests.live.lab import wait_until

TEXT = """id = "1a2b3c4d"
policy = "{policy}"

[site.primary]
endpoint = "image:/srv/a.img"

[site.secondary]
endpoint = "image:/srv/b.img"
"""
DYNAMIC = TEXT.format(policy="dynamic") + '\n[dynamic]\nmax_lat = "4ms"\n'
SEEN = Observation(1.0, Mode.SYNC, connected=True, in_sync=True, lag_s=0.0)
PRIMARY = LiveStatus(
    running=True,
    role="primary",
    state="in-sync",
    mode="sync",
    connected=True,
    window_bytes=1 << 24,
    lag_limit_bytes=1 << 24,
    answered=(3, 600),
    local=(3, 300),
    received=(2, 500),
)


class Policy:
    """Says what it is told to say, and remembers how often it was asked."""

    def __init__(self, says: Callable[[int], Any]) -> None:
        self.says = says

    def begin(self) -> int:
        return 0

    def decide(self, _seen: Observation, asked: int) -> Any:
        found = self.says(asked)
        return (found, asked + 1) if isinstance(found, Directive) else found


def _decider(says: Callable[[int], Any]) -> Decider:
    return Decider(lambda: cast(AnyPolicy, Policy(says)), patience_s=0.2)


@pytest.mark.parametrize(
    "nonsense",
    [
        None, "sync", (), (None, 1), (Directive("sync"), 1), (Directive(Mode.SYNC),),  # type: ignore[arg-type]
        (Directive(Mode.SEMI_SYNC, lag_bytes=-1), 1),
        (Directive(Mode.SEMI_SYNC, answer_within_us=float("nan")), 1),
        (Directive(Mode.SEMI_SYNC, max_lag_bytes=cast(int, "1")), 1),
    ],
)  # fmt: skip
def test_nonsense_is_no_directive(nonsense: object) -> None:
    decider = _decider(lambda asked: nonsense)
    answer = decider.decide(SEEN)
    assert answer.directive is None and answer.problem
    decider.end()


def test_a_policy_that_raises_is_asked_again_with_what_it_remembered() -> None:
    raises = [False, True, True, False]

    def says(asked: int) -> Directive:
        if raises.pop(0):
            raise SystemExit("no\nmore")
        return Directive(Mode.SEMI_SYNC, lag_bytes=asked)

    decider = _decider(says)
    answers = [decider.decide(SEEN) for _ in range(4)]
    assert [each.directive and each.directive.lag_bytes for each in answers] == [0, None, None, 1]
    assert answers[1].problem == "SystemExit: no"
    decider.end()


def test_a_policy_that_hangs_is_left_alone_until_it_answers() -> None:
    released, asks = threading.Event(), []

    def says(asked: int) -> Directive:
        asks.append(asked)
        assert released.wait(30)
        return Directive(Mode.ASYNC)

    decider = _decider(says)
    for _ in range(3):
        answer = decider.decide(SEEN)
        assert answer.directive is None and answer.problem == "it has not answered for 0.2 s"
    released.set()
    time.sleep(0.1)
    assert asks == [0]  # nothing is queued
    wait_until(lambda: decider.decide(SEEN).directive == Directive(Mode.ASYNC), "an answer")
    assert asks == list(range(len(asks)))
    decider.end()


def test_a_policy_that_cannot_be_made_is_no_directive() -> None:
    def make() -> AnyPolicy:
        raise ImportError("no module")

    decider = Decider(make)
    assert decider.decide(SEEN).problem == "ImportError: no module"
    decider.end()


def test_the_keys_of_dynamic() -> None:
    lines = 'max_rpo = "64MiB"\nwindow = "2s"\nhold_down = "1m"\nlower = 0.2\nbuffer = "1MiB"\n'
    definition = parse_both("db", DYNAMIC + lines, "db.toml")["primary"]
    keys = DynamicKeys(0.004, 64 << 20, window_s=2, hold_down_s=60, lower=0.2, buffer_bytes=1 << 20)
    assert definition.policy_keys.dynamic == keys
    again = parse_both("db", render(definition), "db.toml")["primary"]
    assert again.policy_keys == definition.policy_keys and again.policy == "dynamic"
    assert isinstance(open_policy("dynamic", definition.policy_keys), Dynamic)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('max_rpo = "2GiB"', "'2GiB' is out of range"),
        ('max_rpo = "0"', "'0' is out of range"),
        ('window = "9s"', "a window of 9.0 s is out of range"),
        ('hold_down = "soon"', "'soon' is not a duration"),
        ("returning = 2", "'dynamic.returning' is invalid"),
        ("lower = 0.9", "the shares 0.9 and 0.7 of the maximum latency are out of range"),
        ('colour = "red"', "unknown key 'dynamic.colour'"),
    ],
)
def test_a_wrong_key_of_dynamic(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_both("db", f"{DYNAMIC}{line}\n", "db.toml")
    assert caught.value.what == says
    assert caught.value.where in ("db.toml:12", "db.toml:10")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.format(policy="dynamic"), "the policy 'dynamic' needs the table [dynamic]"),
        (TEXT.format(policy="scheduled"), "the policy 'scheduled' needs the table [scheduled]"),
        (TEXT.format(policy="fast"), "'policy' is invalid"),
        (DYNAMIC.replace("max_lat", "hold_down"), "the key 'dynamic.max_lat' is missing"),
        (DYNAMIC.replace("image:", "btrfs:").replace('"dynamic"', '"async"'),
         "the keys of a policy are for images"),
    ],
)  # fmt: skip
def test_a_policy_without_what_it_needs(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_both("db", text, "db.toml")
    assert caught.value.what == says


SCHEDULED = """
[scheduled]
hours = "Mon-Fri 08:00-18:00"
inside = "sync"
outside = "semi-sync"
"""


def test_a_scheduled_policy() -> None:
    text = TEXT.format(policy="scheduled") + SCHEDULED
    definition = parse_both("db", text, "db.toml")["primary"]
    keys = definition.policy_keys
    assert keys.scheduled == ScheduledKeys(("Mon-Fri 08:00-18:00",), "sync", "semi-sync")
    policy = open_policy("scheduled", keys, window="1MiB", zone="UTC")
    memory = policy.begin()
    # (At last the clock, which was ahead, is set back into the hours.)
    for hour, mode, lag in (
        (9, Mode.SYNC, None),
        (19, Mode.SEMI_SYNC, 1 << 20),
        (10, Mode.SYNC, None),
    ):
        monday_ns = (4 * 24 + hour) * 3600 * 10**9  # 1970-01-05
        directive, memory = policy.decide(SEEN._replace(wall_ns=monday_ns), memory)
        assert (directive.mode, directive.max_lag_bytes) == (mode, lag)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"semi-sync"', '"scheduled"', "'scheduled.outside' is invalid"),
        ('"semi-sync"', '"dynamic"', "the policy 'dynamic' needs the table [dynamic]"),
        ("08:00-18:00", "08:00", "'Mon-Fri 08:00' is not a weekly span"),
        ('"Mon-Fri 08:00-18:00"', "[]", "'scheduled.hours' is invalid"),
        ('inside = "sync"', "", "the key 'scheduled.inside' is missing"),
        ('policy = "scheduled"', 'policy = "scheduled"\nwindow = "5s"',
         "the window of 'semi-sync' in 'scheduled' is a duration"),
    ],
)  # fmt: skip
def test_a_wrong_schedule(before: str, after: str, says: str) -> None:
    text = TEXT.format(policy="scheduled") + SCHEDULED
    with pytest.raises(ConfigError) as caught:
        parse_both("db", text.replace(before, after), "db.toml")
    assert caught.value.what == says


def test_the_policy_changes_and_its_keys_stay() -> None:
    text = with_policy(with_policy(DYNAMIC, "sync"), "dynamic")
    assert text == DYNAMIC
    with pytest.raises(UsageError):
        open_policy("dynamic", PolicyKeys())


def test_what_a_policy_sees_is_what_the_primary_reports() -> None:
    seen = observation_of(
        PRIMARY._replace(oldest_us=7, slowest_us=5, buffered_bytes=4, mode="async")
    )
    assert (seen.answered, seen.local, seen.received) == (
        Count(3, 600),
        Count(3, 300),
        Count(2, 500),
    )
    assert (seen.oldest_us, seen.slowest_us, seen.buffered_bytes) == (7, 5, 4)
    assert seen.mode is Mode.ASYNC and seen.wall_ns > 0 and seen.lag_limit_bytes == 1 << 24


class End:
    """A primary, or the other end, which notes the modes that it is told. told while nobody else
    can set one.
    """

    def __init__(self, run: RunFiles, status: LiveStatus) -> None:
        self.run, self.status, self.waiting = run, status, Waiting()
        self.modes: list[Mode] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def live_status(self) -> LiveStatus:
        status, meanwhile, self.meanwhile = self.status, self.meanwhile, lambda: None
        meanwhile()
        return status

    def live_mode(self, mode: Mode) -> None:
        assert locks.holder_of(self.run.mode) is not None, "another process may set it now"
        self.modes.append(mode)
        self.status = self.status._replace(mode=mode.value)

    def live_control(self, controller: str) -> None:
        self.status = self.status._replace(controller=controller)

    def live_copy_rate(self, _rate: int) -> None:
        """Not of interest."""

    def live_traffic(self, merge_above_bytes: int, compress: bool, durable: bool) -> None:
        """Not of interest."""


def _opened(folder: Path, policy: str, primary: End, other: End) -> LiveMirror:
    definitions = Definitions(folder)
    text = DYNAMIC if policy == "dynamic" else TEXT.format(policy=policy)
    (folder / "db.toml").write_text(text)
    row = SimpleNamespace(state=State.MIRRORED)
    catalogue = SimpleNamespace(mirror=lambda _id: row)
    book = Book(definitions, cast(Catalogue, catalogue), cast(Hosts, None), "UTC", "host")
    ends = cast(Live, primary), cast(Live, other)
    return LiveMirror(definitions.load("db"), *ends, book, primary.run, Silent())


def test_a_mode_that_is_set_meanwhile_is_not_undone(tmp_path: Path) -> None:
    run = RunFiles(tmp_path, "db")
    primary, other = End(run, PRIMARY), End(run, LiveStatus())
    mirror = _opened(tmp_path, "async", primary, other)
    primary.meanwhile = lambda: set_mode(mirror, "strict-sync")
    look_after(mirror)  # the definition was read before, and said async
    assert primary.modes == [Mode.STRICT_SYNC]
    look_after(_opened(tmp_path, "sync", primary, other))
    assert primary.modes == [Mode.STRICT_SYNC, Mode.SYNC]
    # What is not fixed is left to the steering, and an end without a mode to itself.
    primary.status = primary.status._replace(mode="async")
    look_after(_opened(tmp_path, "dynamic", primary, other))
    primary.status = primary.status._replace(mode="")
    look_after(_opened(tmp_path, "sync", primary, other))
    assert primary.modes == [Mode.STRICT_SYNC, Mode.SYNC]


def test_what_a_policy_says_does_not_undo_a_mode_that_is_set_meanwhile(tmp_path: Path) -> None:
    run = RunFiles(tmp_path, "db")
    primary, other = End(run, PRIMARY), End(run, LiveStatus())
    mirror = _opened(tmp_path, "async", primary, other)
    ending, told = threading.Event(), list[str]()
    decider = _decider(lambda asked: Directive(Mode.ASYNC if asked else Mode.STRICT_SYNC))

    def tell(problem: str) -> None:
        told.append(problem)
        primary.meanwhile = lambda: set_mode(mirror, "sync")

    # It ends as the definition has another policy.
    steer(mirror, "async", decider, ending, tell, lambda _: None)
    assert told == [""] and primary.modes == [Mode.STRICT_SYNC, Mode.SYNC]
    decider.end()


class Recorder:
    """Stands for the mirror and its end; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.told.append((name, *words))


def _told(directive: Directive, **status: Any) -> list[tuple[Any, ...]]:
    both = Recorder()
    primary = PRIMARY._replace(**status)
    apply(cast(LiveMirror, both), cast(Live, both), primary, directive)
    return both.told


def test_a_directive_is_applied_once() -> None:
    sync, lagging = Directive(Mode.SYNC), Directive(Mode.SEMI_SYNC, answer_within_us=4000.0)
    assert _told(sync) == []
    limit = 1 << 30
    assert _told(lagging) == [
        ("set_window", str(limit)),
        ("live_answer_within", 4000, None),
        ("live_merge", False),
        ("live_mode", Mode.SEMI_SYNC),
    ]
    now = {"mode": "semi-sync", "window_bytes": limit, "answer_within_us": 4000}
    assert _told(lagging._replace(merge=True), **now) == []
    now["merge"] = False
    assert _told(lagging._replace(merge=True), **now) == [("live_merge", True)]
    assert _told(lagging, **now) == []
    assert _told(lagging._replace(lag_bytes=9), **now) == [("live_answer_within", 4000, 9)]
    assert _told(lagging._replace(lag_bytes=9), **now, lag_limit_bytes=9) == []
    assert _told(lagging._replace(max_lag_bytes=1 << 20), **now) == [("set_window", "1048576")]
    assert _told(lagging._replace(answer_within_us=None), **now) == [
        ("live_answer_within", 0, None)
    ]
    assert _told(sync, **now) == [("live_mode", Mode.SYNC)]


def test_what_is_tracked_is_copied_once_the_ends_are_connected() -> None:
    left: dict[str, Any] = {"mode": "async", "state": "out-of-sync", "dirty_bytes": 4096}
    assert _told(Directive(Mode.ASYNC), **left) == [("live_mode", Mode.SEMI_SYNC)]
    assert _told(Directive(Mode.ASYNC, copy=False), **left) == []
    assert _told(Directive(Mode.ASYNC), **{**left, "connected": False}) == []
    copying = {**left, "mode": "semi-sync"}
    assert _told(Directive(Mode.ASYNC), **copying) == []
    assert _told(Directive(Mode.ASYNC), **{**copying, "state": "entering-sync"}) == []
    cut = {**copying, "connected": False}
    assert _told(Directive(Mode.ASYNC), **cut) == [("live_mode", Mode.ASYNC)]
    lagging = {**copying, "state": "semi-sync"}
    assert _told(Directive(Mode.ASYNC), **lagging) == [("live_mode", Mode.ASYNC)]
    # A policy is told that changes are tracked until that is over.
    assert observation_of(PRIMARY._replace(**copying)).mode is Mode.ASYNC
    assert observation_of(PRIMARY._replace(**lagging)).mode is Mode.SEMI_SYNC
    assert observation_of(PRIMARY._replace(**left)).mode is Mode.ASYNC


def _cut(max_rpo_bytes: int | None) -> list[Mode]:
    """The modes of `dynamic` when the link is cut in sync."""
    policy = Dynamic(DynamicKeys(0.1, max_rpo_bytes))
    memory, mode = policy.begin(), Mode.SYNC
    modes = [mode]
    for step in range(60):
        waited_us = max(0, step - 20) * 250_000.0
        seen = SEEN._replace(
            now_s=step / 4, mode=mode, connected=step < 20, oldest_us=waited_us,
            answered=Count(min(step, 20), 0), local=Count(step, 0),
        )  # fmt: skip
        directive, memory = policy.decide(seen, memory)
        mode = directive.mode
        modes += [mode] if mode is not modes[-1] else []
    return modes


def test_a_cut_link_counts_as_latency() -> None:
    assert _cut(None) == [Mode.SYNC, Mode.ASYNC]
    assert _cut(1 << 20) == [Mode.SYNC, Mode.SEMI_SYNC]


@pytest.mark.parametrize(
    ("max_rpo_bytes", "status", "mode"),
    [
        (None, {"connected": False}, Mode.ASYNC),
        (None, {"dirty_bytes": 4096}, Mode.ASYNC),
        (None, {}, Mode.SEMI_SYNC),
        (1 << 20, {"connected": False}, Mode.SEMI_SYNC),
        (1 << 20, {"dirty_bytes": 4096}, Mode.SEMI_SYNC),
    ],
)
def test_writes_that_wait_for_a_resync_in_semi_sync_are_released(
    max_rpo_bytes: int | None, status: dict[str, Any], mode: Mode
) -> None:
    policy = Dynamic(DynamicKeys(0.1, max_rpo_bytes))
    memory = policy.begin()
    found = None
    for step in range(16):
        seen = SEEN._replace(now_s=step / 4, mode=Mode.SEMI_SYNC, slowest_us=9e6, oldest_us=9e6)
        found, memory = policy.decide(seen._replace(**status), memory)
    assert found is not None and found.mode is mode


def test_a_mirror_that_is_cut_off_does_not_return() -> None:
    policy = Dynamic(DynamicKeys(0.1))
    seen = SEEN._replace(mode=Mode.ASYNC, connected=False)
    assert policy.decide(seen, policy.begin())[0].mode is Mode.ASYNC
    assert policy.decide(seen._replace(connected=True), policy.begin())[0].mode is Mode.SEMI_SYNC
    seen = SEEN._replace(now_s=1e6, mode=Mode.SEMI_SYNC, connected=False)
    assert policy.decide(seen, policy.begin())[0].mode is Mode.SEMI_SYNC
    assert policy.decide(seen._replace(connected=True), policy.begin())[0].mode is Mode.SYNC


def test_counts_of_a_restarted_process_begin_again() -> None:
    policy = Dynamic(DynamicKeys(0.1))
    memory = policy.begin()
    first = SEEN._replace(answered=Count(100, 9e9), local=Count(100, 0))
    _directive, memory = policy.decide(first, memory)
    later = SEEN._replace(now_s=9.0, answered=Count(10, 9e6), local=Count(10, 0))
    assert policy.decide(later, memory)[0].mode is Mode.SEMI_SYNC


def test_a_fixed_policy_keeps_its_lag() -> None:
    directive, _ = Fixed(Mode.SEMI_SYNC, 5).decide(SEEN, None)
    assert (directive.lag_bytes, directive.max_lag_bytes) == (5, 5)
