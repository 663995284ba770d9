"""The judgement of a mirror's status: the lag, what is wrong, and each cause only once."""

from __future__ import annotations

import pytest

from mirrord.core.records import AlarmKind, FailureRecord, Finding, Level, TransferRecord
from mirrord.core.results import VerbProgress
from mirrord.core.states import Activity, State
from mirrord.core.status import (
    Checkpoint,
    Interrupted,
    Lag,
    Reading,
    RunningVerb,
    Supervision,
    judge,
    judge_lag,
    judge_verified,
)
from mirrord.core.verification import Verified, VerifyMode, standing

S = 1_000_000_000
MIRRORED = Reading("home", state=State.MIRRORED, confirmed_ns=1000 * S, rpo_s=100.0)
HALF_DONE = VerbProgress(Activity.TRANSFERRING, "snapshot", 1000, 500, 10)


@pytest.mark.parametrize(
    ("lag_s", "exceeded", "level"),
    [
        (99.9, False, None),
        (100.0, True, None),
        (149.9, True, None),
        (150.0, True, Level.WARNING),
        (250.0, True, Level.ERROR),
    ],
)
def test_the_rpo_is_missed_from_100_percent_and_alarms_keep_their_thresholds(
    lag_s: float, exceeded: bool, level: Level | None
) -> None:
    found = judge_lag(lag_s, 100.0)
    assert (found.exceeded, found.level, bool(found.forecast)) == (exceeded, level, exceeded)
    status = judge(MIRRORED, now_ns=1000 * S + round(lag_s * S))
    assert status.healthy == (not exceeded) and status.lag == found


def test_a_transfer_that_ends_too_late_is_a_risk_before_it_is_a_problem() -> None:
    assert HALF_DONE.left_s == 50
    assert not judge_lag(39.0, 100.0, left_s=50.0).at_risk
    assert judge_lag(41.0, 100.0, left_s=50.0) == Lag(0.41, None, True, "")
    late = judge_lag(60.0, 100.0, left_s=50.0)
    assert late.at_risk and "will be exceeded in 40" in late.forecast and not late.exceeded
    assert not judge_lag(99.0, 100.0).at_risk, "no transfer runs"


def test_nothing_is_judged_where_nothing_is_promised_or_known() -> None:
    assert judge_lag(9.0, None) == judge_lag(None, 9.0) == Lag()
    broken_off = judge(MIRRORED._replace(state=State.BROKEN_OFF), now_ns=9000 * S)
    assert broken_off.lag == Lag() and broken_off.healthy and broken_off.lag_s == 8000


def test_the_lag_is_that_of_the_moment_and_of_a_daemon_that_of_its_own_clock() -> None:
    assert judge(MIRRORED, now_ns=1005 * S).lag_s == 5
    assert judge(MIRRORED, now_ns=1 * S).lag_s == 0, "the clock went back"
    assert judge(MIRRORED._replace(confirmed_ns=0), now_ns=1005 * S).lag_s is None
    assert judge(MIRRORED, now_ns=1005 * S, supervision=Supervision(7.0)).lag_s == 7


def test_a_failed_transfer_is_a_problem_until_the_destination_was_found_up_to_date() -> None:
    begun = TransferRecord(
        "t",
        "update",
        "base",
        "",
        "",
        "",
        "failed",
        1001 * S,
        0,
        0,
        0,
        0,
        0,
        "",
        "",
        0,
        "",
        None,
        "",
    )
    failed = begun._replace(error="no space")
    reading = MIRRORED._replace(last_transfer=failed)
    assert judge(reading, now_ns=1005 * S).problems == ("the last transfer failed: no space",)
    assert judge(reading._replace(confirmed_ns=1002 * S), now_ns=1005 * S).healthy


def test_each_cause_is_told_once() -> None:
    lag = Finding(AlarmKind.LAG, Level.WARNING, "the lag is 180 s")
    found = judge(MIRRORED, now_ns=1180 * S, supervision=Supervision(180.0, (lag,)))
    assert found.problems == ("the lag is 180 s",)
    failed = FailureRecord("update", "update", 1, "io", "the disk is gone")
    fault = Finding(AlarmKind.DESTINATION, Level.ERROR, "unreachable: the disk is gone")
    reading = MIRRORED._replace(faults=(fault,), failures=(failed,))
    raised = Supervision(1.0, (fault,), error="the disk is gone")
    assert judge(reading, now_ns=1001 * S, supervision=raised).problems == (fault.text,)


def test_what_a_crash_left_is_no_problem_while_a_verb_is_at_work() -> None:
    reading = MIRRORED._replace(interrupted=Interrupted("update", 7))
    assert "process 7 ended during update" in judge(reading, now_ns=1001 * S).problems[0]
    running = RunningVerb(8, "update", HALF_DONE)
    found = judge(reading, now_ns=1001 * S, running=running)
    assert found.healthy and found.activity is Activity.TRANSFERRING


def test_a_checkpoint_ages() -> None:
    reading = MIRRORED._replace(checkpoint=Checkpoint(5, 10, 990 * S))
    assert judge(reading, now_ns=1001 * S).checkpoint_age_s == 11
    assert judge(MIRRORED, now_ns=1001 * S).checkpoint_age_s is None


@pytest.mark.parametrize(
    ("age_s", "differences", "max_age_s", "level"),
    [
        (1, 0, None, None),
        (1e9, 0, None, None),
        (99, 0, 100, None),
        (100, 0, 100, Level.WARNING),
        (1, 3, None, Level.ERROR),
        (1e9, 3, 100, Level.ERROR),
        (None, 0, None, None),
        (None, 0, 100, Level.WARNING),
    ],
)
def test_a_verification_that_is_old_or_found_differences(
    age_s: float | None, differences: int, max_age_s: float | None, level: Level | None
) -> None:
    now_ns = 2_000_000_000 * S
    verified = None
    if age_s is not None:
        at_ns = now_ns - round(age_s * S)
        verified = Verified("g", "s1", at_ns, VerifyMode.FULL, differences, "")
    found = judge_verified(verified, "s1", max_age_s, now_ns)
    assert (found and (found.kind, found.level)) == (level and (AlarmKind.VERIFY, level))
    assert judge_verified(None, "", 100, now_ns) is None  # there is nothing to verify yet
    age = judge(MIRRORED._replace(verified=verified), now_ns=now_ns).verified_age_s
    assert age == age_s


def test_what_reads_only_changes_does_not_disprove_damage() -> None:
    def one(mode: VerifyMode, differences: int) -> Verified:
        return Verified("g", "s", 1, mode, differences, "")

    damaged, changed = one(VerifyMode.FULL, 1), one(VerifyMode.CHANGED, 0)
    assert standing([]) is None
    assert standing([changed]) is changed
    assert standing([changed, damaged]) is damaged
    full = one(VerifyMode.FULL, 0)
    assert standing([changed, full, damaged]) is changed
    wrong = one(VerifyMode.CHANGED, 1)
    assert standing([wrong, full]) is wrong
