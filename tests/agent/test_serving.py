"""What the sessions of one agent's process share."""

from __future__ import annotations

from pathlib import Path

from mirrord.agent.run import Serving
from mirrord.system.paths import Paths
from tests.link.test_session import pair


def test_a_former_session_of_a_client_does_not_take_the_place_of_its_new_one(
    tmp_path: Path,
) -> None:
    serving, name = Serving(Paths(tmp_path, tmp_path, tmp_path)), ("home", "token")
    with (
        pair(lambda _exchange, _method, _words: None) as (former, _one),
        pair(lambda _exchange, _method, _words: None) as (later, _other),
    ):
        leaving = serving.having(name, former)
        leaving.__enter__()
        with serving.having(name, later):
            leaving.__exit__(None, None, None)
            assert later.alive
            serving.end(name)
            assert not later.alive and former.alive
