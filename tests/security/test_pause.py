"""A peer that wants to pause what it may not, or for too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError, PauseFailed, ProtocolError, Refused, Untrusted
from mirrord.drivers.block.volume import Volume
from tests.security.sentences import breaks
from tests.support.agents import agents
from tests.support.service import PATIENCE_S


@breaks("V7")
@pytest.mark.parametrize(
    ("rules", "asked", "wanted"),
    [
        ([], "hook:{0}/program", Untrusted),
        (["send={0}"], "hook:{0}/program", Untrusted),
        (["receive={0}", "pause=hook:{0}/program"], "hook:{0}/program", Untrusted),
        (["send={0}", "pause=hook:{0}/program"], "hook:{0}/program x", Untrusted),
        (["send={0}", "pause=program"], "hook:{0}/program", Untrusted),
        (["send={0}", "pause=hook:{0}/program"], "hook:{0}/program", None),
    ],
)
def test_a_peer_pauses_only_what_it_may(
    tmp_path: Path, rules: list[str], asked: str, wanted: type[MirrordError] | None
) -> None:
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\necho $1 >> {ran}\n")
    program.chmod(0o755)
    Volume.create(tmp_path / "v", 1 << 20).close()
    words = [word for rule in rules for word in ("--allow", rule.format(tmp_path))]
    with agents(tmp_path / "home", *words) as others:
        session = others.session()
        number = session.call("open", "block", str(tmp_path / "v"))[0]
        given = [asked.format(tmp_path)]
        if wanted is not None:
            with pytest.raises(wanted, match="may not pause"):
                session.call("pause_open", number, given, 1.0, timeout_s=PATIENCE_S)
            if f"pause={asked}" not in rules:  # who may pause it may have it resumed
                with pytest.raises(Untrusted, match="may not pause"):
                    session.call("pause_left", number, given, timeout_s=PATIENCE_S)
            with pytest.raises((PauseFailed, Untrusted)):
                session.call("pause_begin", number, timeout_s=PATIENCE_S)
            assert not ran.exists()
            return
        with pytest.raises(ProtocolError, match="nothing to pause"):
            session.call("pause_open", number, [], 1.0, timeout_s=PATIENCE_S)
        for seconds in (0.0, -1.0, 61.0, float("nan"), float("inf")):
            with pytest.raises(Refused, match="of that length"):
                session.call("pause_open", number, given, seconds, timeout_s=PATIENCE_S)
        session.call("pause_open", number, given, 5.0, timeout_s=PATIENCE_S)
        session.call("pause_begin", number, timeout_s=PATIENCE_S)
        session.call("pause_end", number, timeout_s=PATIENCE_S)
        assert ran.read_text().split() == ["pause", "resume"]


@breaks("V7")
def test_a_pause_ends_with_the_session(tmp_path: Path) -> None:
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\necho $1 >> {ran}\n")
    program.chmod(0o755)
    Volume.create(tmp_path / "v", 1 << 20).close()
    words = ["--allow", f"send={tmp_path}", "--allow", f"pause=hook:{program}"]
    with agents(tmp_path / "home", *words) as others:
        session = others.session()
        number = session.call("open", "block", str(tmp_path / "v"))[0]
        session.call("pause_open", number, [f"hook:{program}"], 30.0, timeout_s=PATIENCE_S)
        session.call("pause_begin", number, timeout_s=PATIENCE_S)
        assert ran.read_text().split() == ["pause"]
    assert ran.read_text().split() == ["pause", "resume"]
