"""Fixtures for all: a fresh lab of each kind of volume, and a world with a mirror in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mirrord.system import clock, steps
from tests.__main__ import ON_MACHINE as FOLDERS_ON_MACHINE
from tests.contract.lab import Lab
from tests.contract.lab_set_zfs import ZfsSetLab
from tests.contract.sets import SetLab
from tests.contract.zfs import ZfsLab, ZvolLab
from tests.support import btrfs, costs, traces
from tests.support.labs import (
    LABS,
    MACHINE_LABS,
    MACHINE_SETS,
    PRODUCT_LABS,
    SET_LABS,
    open_lab,
)
from tests.support.sshd import Sshd, running
from tests.support.world import DaemonWorld, RemoteWorld, SetWorld, World
from tests.zfsvm import session as machines
from tests.zfsvm.bridge import Bridged, BridgedSet
from tests.zfsvm.guest import Guest

#: How long an example takes says more of what else the machine does than of what is tested.
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
#: The same examples in each run, so that a change is judged by what it changes. New ones: nightly.
settings.register_profile("patient", settings.get_profile("nightly"), derandomize=True)
settings.load_profile("patient")

WAYS = ("process", "daemon", "push", "pull")


#: With one end on another host: which.
AWAY = {"push": "destination", "pull": "source"}
#: What goes over the link is the same for every verb, and the contract suite drives each driver's
#: every call over it at both ends. So a life cycle has each end away once, each with another kind
#: of volume; those marked `both_ways` differ by direction and by kind, and have all four. On
#: ZFS file systems those also go by SSH; all else is bridged to the machine's agents.
ONE_WAY = {"lab_btrfs": "push", "lab_block": "pull", "lab_nested": "pull"}

#: An emulated machine is slow: of the contract and of the life cycle each run has these on the file
#: systems of OpenZFS. The rest is `nightly`, and so are volumes, which differ in the driver alone.
ON_MACHINE = (
    "test_conformance.py",
    "test_a_damaged_stream_is_never_committed",
    "test_a_freeze_ends_with_a_process_that_is_killed",
    "test_a_frozen_volume_takes_no_write_until_it_is_thawed",
    "test_a_rollback_keeps_an_overwritten_byte",
    "test_a_rollback_loses_no_acknowledged_write_of_a_program",
    "test_a_stream_that_ends_early_is_never_complete",
    "test_an_interrupted_receive_leaves_the_destination_as_it_was",
    "test_discard_removes_every_trace",
    "test_initialize_and_updates_carry_all_content",
    "test_nothing_is_visible_before_commit",
    "test_what_was_live_can_be_put_back",
    "test_initialize_and_updates_keep_the_destination_in_step",
    "test_restore_all_brings_the_source_back",
    "test_reverse_after_a_break_and_back_again",
)
VOLUMES = {"lab_remote_zvol", "volume", *MACHINE_SETS}
#: Of a test with several cases those that are in each run on the emulated machine.
CASES_ON_MACHINE: dict[str, list[object]] = {
    "test_a_damaged_stream_is_never_committed": ["middle"],
    "test_a_stream_that_ends_early_is_never_complete": [100, -1],
    "test_a_tree_is_compared_dataset_by_dataset_and_a_volume_block_by_block": ["off"],
}
#: A btrfs volume with its nested ones differs in the driver alone: of what goes through the product
#: these run on it, of them some in each run.
NESTED_LAB = "lab_nested"
NESTED_SUITES = ("test_life_cycle.py", "test_matrix.py")
NESTED_LIFE = (
    "test_a_lost_catalogue_is_found_anew_from_the_ends",
    "test_break_write_and_resync_keeps_the_losing_side",
    "test_initialize_and_updates_keep_the_destination_in_step",
    "test_restore_all_brings_the_source_back",
    "test_reverse_after_a_break_and_back_again",
    "test_reverse_of_a_working_mirror_carries_the_last_changes_first",
)
#: What such a volume does not have.
NOT_NESTED = ("user_snapshots",)
#: Of the contract, over an agent; the rest is `nightly`.
NESTED_REMOTE = ("test_transfer.py", "test_switching.py")
#: Of sets, on block volumes, too. What else a fault does to the members of a set is the engine's,
#: and is seen on btrfs; the rest is `nightly`.
BLOCK_SETS = (
    "test_control.py",
    "test_life_cycle.py",
    "test_pools.py",
    "test_a_break_after_a_crash_in_a_commit_begins_as_one_set",
    "test_abort_hard",
    "test_update",
)
#: Each step of the contract is broken on a volume and on a set of them.
EACH_STEP = "test_a_crash_at_any_step_is_mended_by_doing_it_again"
EACH_STEP_NIGHTLY = {"lab_nested", "lab_set_block"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lab" not in metafunc.fixturenames:
        return
    suite = metafunc.definition.path.parent.name
    # What happens in a process is seen in that process only.
    inside = metafunc.definition.get_closest_marker("in_process") is not None
    if suite == "contract":
        away = (*MACHINE_SETS, "lab_remote")
        labs = [name for name in LABS if not (inside and name.startswith(away))]
        own = ("user_snapshots", "owners_snapshots")
        if any(part in metafunc.function.__name__ for part in own):
            # A volume with nested ones has none of these.
            labs = [name for name in labs if not name.endswith("_nested")]
        if metafunc.definition.get_closest_marker("one_volume") is not None:
            labs = [name for name in labs if name not in SET_LABS]
    else:
        labs = PRODUCT_LABS if suite != "sets" else [one for one in SET_LABS if "memory" not in one]
        if inside or metafunc.module.__name__ != "tests.sets.test_life_cycle":
            # What is broken in this process is seen there only; see also crash/test_machine.py.
            labs = [one for one in labs if one not in MACHINE_SETS]
        nested = metafunc.definition.path.name in NESTED_SUITES and suite != "sets"
        if nested and not any(part in metafunc.function.__name__ for part in NOT_NESTED):
            labs = [*labs, NESTED_LAB]
    assert labs, "no lab was found: the suite would test nothing"
    if suite != "integration":
        if metafunc.definition.get_closest_marker("on_machine") is not None:
            labs = [*labs, MACHINE_LABS[0]]  # (volumes differ in the driver alone)
        metafunc.parametrize("lab", labs, indirect=True)
        return
    # The life cycle is the same whether this process does the work or a daemon, and wherever the
    # ends are: on this host, one on another, or both on the machine that has ZFS.
    worlds = "world" in metafunc.fixturenames
    ways = WAYS if worlds and not inside else WAYS[:1]
    every = metafunc.definition.get_closest_marker("both_ways") is not None
    both = [
        (name, way)
        for way in ways
        for name in labs
        if every or way not in AWAY or ONE_WAY.get(name, way) == way
    ]
    both += [(name, "machine") for name in MACHINE_LABS if not inside]
    metafunc.parametrize(("lab", "way"), both, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the virtual machine says so: it can be run by itself, beside the rest."""
    for item in items:
        asked = getattr(item, "fixturenames", ())
        chosen = getattr(item, "callspec", None)
        given = [one for one in chosen.params.values() if isinstance(one, str)] if chosen else []
        if _is_nightly(item, given):
            item.add_marker("nightly")
        if "zfs_guest" in asked or not set(MACHINE_LABS + MACHINE_SETS).isdisjoint(given):
            item.add_marker("zfs")
        if not item.get_closest_marker("zfs"):
            continue
        if item.path.parent.name not in FOLDERS_ON_MACHINE:
            raise pytest.UsageError(f"no group would run {item.nodeid}: see tests/__main__.py")
        cases = list(chosen.params.values()) if chosen else []
        wanted = CASES_ON_MACHINE.get(item.name.partition("[")[0])
        is_left_out = wanted is not None and all(one not in wanted for one in cases)
        if item.get_closest_marker("on_machine") or is_left_out or _takes_long(item, given):
            item.add_marker("nightly")
        # The machine is emulated, on processors that the other groups of tests use, too.
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


def _is_nightly(item: pytest.Item, given: list[str]) -> bool:
    """Whether a test differs from one of every run only in the kind of its volumes."""
    folder, file, name = item.path.parent.name, item.path.name, item.name.partition("[")[0]
    if folder == "sets" and "lab_set_block" in given:
        return {file, name}.isdisjoint(BLOCK_SETS)
    if name == EACH_STEP and not EACH_STEP_NIGHTLY.isdisjoint(given):
        return True
    if NESTED_LAB in given and folder != "contract":
        return not (name in NESTED_LIFE and "process" in given)
    return f"lab_remote{NESTED_LAB[3:]}" in given and file not in NESTED_REMOTE


def _takes_long(item: pytest.Item, given: list[str]) -> bool:
    """Whether a test on the emulated machine is one of those that are not in every run."""
    names = {item.path.name, item.name.partition("[")[0]}
    general = item.path.parent.name in ("contract", "integration")
    return not VOLUMES.isdisjoint(given) or (general and names.isdisjoint(ON_MACHINE))


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    large = request.node.get_closest_marker("large") is not None
    with open_lab(request.param, tmp_path, large=large) as made:
        yield made


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", WAYS[0]))


@pytest.fixture
def world(lab: Lab, way: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    made: World
    marked = request.node.get_closest_marker("both_ways") is not None
    if way in AWAY:
        made = RemoteWorld(lab, tmp_path / "home", request.getfixturevalue("host"), AWAY[way])
    elif isinstance(lab, ZvolLab) or (isinstance(lab, ZfsLab) and not marked):
        # Without SSH and a fresh Python in the emulated machine: 3 s of a processor each time.
        made = Bridged(lab, tmp_path)
    elif isinstance(lab, ZfsSetLab):
        made = BridgedSet(lab, tmp_path)
    elif isinstance(lab, SetLab):
        made = SetWorld(lab, tmp_path / "home")
    else:
        kinds = {"process": World, "machine": World, "daemon": DaemonWorld}
        made = kinds[way](lab, tmp_path / "home")
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Another host: a real sshd, which lets one key in."""
    with running(tmp_path_factory.mktemp("host") / "sshd") as made:
        yield made


@pytest.fixture(autouse=True)
def nobody_observes() -> Iterator[None]:
    yield
    steps.observe(None)
    clock.use(None)


@pytest.fixture
def zfs_guest() -> Guest:
    """The virtual machine that has real OpenZFS."""
    return machines.guest()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with costs.counted(item.path.parent.name):
        return (yield)


def pytest_unconfigure() -> None:
    # (Also after an interrupt, all fixtures are through with them now.)
    machines.close()
    btrfs.close_shared()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What it cost; whether OpenZFS was tested, and on which traces, plainly."""
    terminalreporter.section("Processor time")
    for line in costs.summary():
        terminalreporter.write_line(line)
    if told := traces.summary():
        terminalreporter.section("Traces")
        for line in told:
            terminalreporter.write_line(line)
    well, lines = machines.summary()
    if lines:
        terminalreporter.section("OpenZFS in a virtual machine", red=not well, green=well)
        for line in lines:
            terminalreporter.write_line(line, red=not well)
