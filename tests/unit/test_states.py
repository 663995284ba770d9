"""The life cycle's table."""

from __future__ import annotations

import itertools

import pytest

from mirrord.core.states import TABLE, TRANSFERS, Already, Refusal, State, Verb, judge


def test_the_table_has_a_verdict_for_every_state_and_verb() -> None:
    assert set(TABLE) == set(itertools.product(State, Verb))


@pytest.mark.parametrize("verdict", [v for v in TABLE.values() if isinstance(v, Refusal)])
def test_every_refusal_says_why_and_names_a_command(verdict: Refusal) -> None:
    assert verdict.why and not verdict.why.endswith(".")
    assert "mirrord " in verdict.hint and verdict.hint.endswith(".")
    assert "{name}" in verdict.hint.format_map({"name": "{name}"})


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", TRANSFERS)
def test_a_quiesced_mirror_refuses_every_transfer(state: State, verb: Verb) -> None:
    assert isinstance(judge(state, verb, quiesced=True), Refusal)


@pytest.mark.parametrize("state", State)
def test_break_abort_and_resume_work_on_a_quiesced_mirror(state: State) -> None:
    assert judge(state, Verb.BREAK, quiesced=True) == TABLE[state, Verb.BREAK]
    assert judge(state, Verb.ABORT, quiesced=True) is state
    assert judge(state, Verb.RESUME, quiesced=True) is state
    assert isinstance(judge(state, Verb.RESUME, quiesced=False), Already)
    assert isinstance(judge(state, Verb.QUIESCE, quiesced=True), Already)


def test_every_state_can_be_left_and_reached() -> None:
    moves = {(state, new) for (state, _), new in TABLE.items() if isinstance(new, State)}
    assert (State.UNINITIALIZED, State.MIRRORED) in moves
    assert (State.MIRRORED, State.BROKEN_OFF) in moves
    assert (State.BROKEN_OFF, State.MIRRORED) in moves
    assert (State.BROKEN_OFF, State.UNINITIALIZED) in moves
    assert (State.UNINITIALIZED, State.BROKEN_OFF) not in moves
