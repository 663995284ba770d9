"""All verbs on a group whose sources are on two hosts, and whose destinations are on two hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrord.core.errors import MirrordError
from tests.pausers.conftest import NAME, VOLUMES
from tests.pausers.hosts import HOSTS, Hosts, hosts

COMMIT = "BTRFS:COMMIT:SHOW:RENAME"
#: Each agent is killed when it is about to show a new set.
_KILLED = """
import os, signal
from pathlib import Path
from mirrord.system import steps
def die(label):
    if label == LABEL and Path(ARMED).exists():
        Path(ARMED).write_text("killed")
        os.kill(os.getpid(), signal.SIGKILL)
steps.observe(die)
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path / "home") as made:
        made.paused()
        made.settings("retries = 0")
        for host in HOSTS:
            made.allow(host, *_rules(made, host))
        _change(made.here, "1")
        made.service.initialize(NAME)
        yield made


def _rules(pair: Hosts, host: str) -> list[str]:
    """For both directions."""
    folders = (pair.here, pair.there)
    transfers = [f"{what}={one}" for one in folders for what in ("send", "receive")]
    return [*transfers, f"pause=cgroup:{pair.apps[host].path}"]


def _change(folder: Path, text: str) -> None:
    for name in VOLUMES:
        (folder / name / "text").write_text(text)


def _shown(pair: Hosts) -> set[str]:
    """What the members of the destination show."""
    return {(view / "text").read_text() for view in pair.views()}


def test_what_was_not_tested_with_the_pause(pair: Hosts) -> None:
    service = pair.service
    first = next(one.name for one in service.snapshots(NAME).snapshots if one.destination)
    _change(pair.here, "2")
    found = service.delta(NAME, base=None, incremental=None, states=True, files=False)
    assert found.added_bytes > 0
    assert service.explain(NAME).status
    service.update(NAME)
    assert _shown(pair) == {"2"}
    assert service.verify(NAME).status == "verified"
    service.prune(NAME, dry_run=False, accept=False)
    service.break_off(NAME)
    assert service.restore_all(NAME, snapshot=first, yes=True).status == "done"
    assert {(pair.here / name / "text").read_text() for name in VOLUMES} == {"1"}


VERBS: dict[str, Callable[[Hosts], object]] = {
    "update": lambda pair: pair.service.update(NAME),
    "verify": lambda pair: pair.service.verify(NAME),
    "break": lambda pair: pair.service.break_off(NAME),
    "reverse": lambda pair: pair.service.reverse(NAME, yes=True),
    "restore": lambda pair: pair.service.restore_all(NAME, snapshot=None, yes=True),
    "delta": lambda pair: pair.service.delta(
        NAME, base=None, incremental=None, states=True, files=False
    ),
    "resync": lambda pair: pair.service.resync(NAME, yes=True),
    "prune": lambda pair: pair.service.prune(NAME, dry_run=False, accept=False),
    "group test": lambda pair: pair.service.pause_once(NAME),
}


@pytest.mark.parametrize("is_cut", [
    False,
    pytest.param(True, marks=pytest.mark.nightly),  # each waits until the host counts as lost
])  # fmt: skip
def test_each_verb_without_one_host(pair: Hosts, *, is_cut: bool) -> None:
    """It fails with an error that names the host, and nothing is lost."""
    if is_cut:
        pair.networks["two"].cut()
    else:
        pair.sshds["two"].stop()
    pair.again()
    for verb, run in VERBS.items():
        with pytest.raises(MirrordError) as failure:
            run(pair)
        assert "two" in str(failure.value) and "\n" not in str(failure.value), verb
        assert not pair.any_asked(), verb
    assert "cannot be reached: two: " in pair.service.explain(NAME).text
    assert _shown(pair) == {"1"}
    if is_cut:
        pair.networks["two"].mend()
    else:
        pair.sshds["two"].start()
    _change(pair.here, "2")
    pair.again().update(NAME)
    assert _shown(pair) == {"2"}


@pytest.mark.parametrize("verb", ["break", "update"])
def test_a_host_that_dies_in_the_middle_of_a_commit(pair: Hosts, verb: str) -> None:
    """All members hold the new set by then, so all show it after the next command."""
    armed = pair.home / "armed"
    code = _KILLED.replace("LABEL", repr(COMMIT)).replace("ARMED", repr(str(armed)))
    pair.allow("two", *_rules(pair, "two"), code=code)
    armed.touch()
    _change(pair.here, "2")
    with pytest.raises(MirrordError):
        pair.service.update(NAME)
    assert armed.read_text() == "killed", "this is about a commit that was interrupted"
    armed.unlink()
    VERBS[verb](pair)
    assert _shown(pair) == {"2"}
