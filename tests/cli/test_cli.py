"""The command line as a person types it: every bad input is one clear line, and JSON is JSON."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mirrord.cli.main import run
from mirrord.cli.table import commands
from mirrord.drivers.block.volume import Volume
from tests.contract.lab_block import BlockLab, lab
from tests.support.definitions import add_lines
from tests.support.world import NAME, ROOT, World

#: Commands that are not called with just the name of a mirror.
OTHERS = {"create", "restore", "config", "volume", "demo", "daemon", "reload", "alarms", "watch",
          "schedule", "throttle", "monitor", "agent", "pki", "host", "change-source", "adopt",
          "trace", "analyze", "mode", "group"}  # fmt: skip
HOME_VERBS = [name for name in commands() if name not in OTHERS]


@pytest.fixture
def block(tmp_path: Path) -> World:
    with lab(tmp_path) as made:
        assert isinstance(made, BlockLab)
        return World(made, tmp_path / "home")


def refused(done: subprocess.CompletedProcess[str], status: int, *parts: str) -> None:
    """One `error:` line, at most one `hint:` line, nothing else."""
    assert done.returncode == status, done
    lines = done.stderr.strip().splitlines()
    assert lines and lines[0].startswith("error: "), done.stderr
    assert all(line.startswith(("error: ", "hint: ")) for line in lines), done.stderr
    assert len(lines) <= 2 and "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize("verb", HOME_VERBS)
def test_every_verb_answers_a_misspelt_mirror(block: World, verb: str) -> None:
    block.create()
    refused(block.cli(verb, "hoem"), 1, "no mirror is called 'hoem'", "Did you mean 'home'?")


@pytest.mark.parametrize(
    "words",
    [
        ("throttle", "hoem", "1MiB/s"),
        ("mode", "hoem", "sync"),
        ("schedule", "next", "hoem"),
        ("group", "test", "hoem"),
        ("change-source", "hoem", "block:/x"),
        ("takeover", "hoem", "--source", "primary"),
    ],
)
def test_verbs_with_more_arguments_answer_a_misspelt_mirror(
    block: World, words: tuple[str, ...]
) -> None:
    block.create()
    refused(block.cli(*words), 1, "no mirror is called 'hoem'", "Did you mean 'home'?")


@pytest.mark.parametrize("verb", [name for name in commands() if name != "demo"])
def test_every_command_has_help_and_answers_an_unknown_option(block: World, verb: str) -> None:
    shown = block.cli(verb, "--help")
    assert shown.returncode == 0 and "Usage: mirrord" in shown.stdout
    refused(block.cli(verb, "--nonsense"), 2, "nonsense")


def test_the_lines_of_help_are_broken_by_the_terminal_alone(block: World) -> None:
    assert "\n give it up instead: 'mirrord" in block.cli("resume-operation", "--help").stdout
    assert "\n a block device: every request" in block.cli("trace", "record", "--help").stdout


@pytest.mark.parametrize(
    ("words", "status", "parts"),
    [
        (("updat", "home"), 2, ("there is no command 'updat'", "mirrord update")),
        (("update",), 2, ("missing argument 'NAME'",)),
        (("update", "a", "b"), 2, ("unexpected extra argument",)),
        (("create", "x"), 2, ("missing argument",)),
        (("create", "x", "/a", "block:/b"), 2, ("has no volume kind",)),
        (("create", "x", "block:/nowhere/a", "block:/nowhere/b"), 1, ("no volume at the source",)),
        (("create", "a/b", "block:/a", "block:/b"), 2, ("is not a valid name for a mirror",)),
        (
            ("create", "x", "block:/a", "block:/b", "--keep-source", "x"),
            2,
            ("is not a retention rule",),
        ),
        (("create", "x", "block:/a", "block:/b", "--keep-source", "²"), 2, ("retention rule",)),
        (("host", "check", "dr..example.org"), 1, ("cannot resolve the host name",)),
        (("restore", "home"), 2, ("either FILE or '--all' is required",)),
        (("history", "home", "-n", "0"), 2, ("range",)),
        (("config", "chek"), 2, ("chek",)),
    ],
)
def test_typing_errors(
    block: World, words: tuple[str, ...], status: int, parts: tuple[str, ...]
) -> None:
    refused(block.cli(*words), status, *parts)


def test_a_wrong_definition_is_named_with_file_and_line(block: World) -> None:
    block.create()
    file = block.paths.mirrors / "home.toml"
    file.write_text(file.read_text() + "kep = 3\n")
    for words in (("config", "check"), ("update", NAME), ("status", NAME)):
        refused(block.cli(*words), 2, f"{file}:", "unknown key 'site.secondary.kep'", "'keep'")
    for_all = block.cli("status")
    assert for_all.returncode == 0 and "unknown key 'site.secondary.kep'" in for_all.stdout


def test_an_update_before_the_first_transfer_is_no_failure(block: World) -> None:
    """The catalogue does not know a definition that was copied or written by hand."""
    block.create()
    block.forget_catalogue()
    refused(block.cli("update", NAME), 1, "it was never initialized")
    assert block.cli("monitor").returncode == 0


def test_a_file_whose_name_is_no_name_sends_nothing_to_the_terminal(block: World) -> None:
    block.create()
    (block.paths.mirrors / "x\x1b[31m.toml").write_text("nonsense")
    shown = block.cli("status")
    assert shown.returncode == 0 and "\x1b" not in shown.stdout
    assert r"x\x1b[31m  unknown" in shown.stdout


def test_a_corrupt_catalogue_and_one_from_the_future(block: World) -> None:
    block.initialized()
    block.service.close()
    raw = sqlite3.connect(block.paths.catalogue)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    refused(block.cli("update", NAME), 1, "newer mirrord")
    for name in ("catalogue.sqlite-wal", "catalogue.sqlite-shm"):
        (block.paths.state / name).unlink(missing_ok=True)
    block.paths.catalogue.write_bytes(b"rubbish" * 1000)
    refused(block.cli("update", NAME), 1, "catalogue", "Move the file away")
    block.paths.catalogue.unlink()
    assert block.cli("update", NAME).returncode == 0
    assert block.in_step()


def test_the_folder_that_mirrord_home_names_cannot_be_made(block: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "MIRRORD_HOME": str(tmp_path / "file" / "below")}
    done = subprocess.run(
        block.command("create", "x", str(block.lab.source()), str(block.lab.destination())),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    refused(done, 2, "cannot be created", "MIRRORD_HOME")


def test_off_a_terminal_resync_shows_its_plan_and_needs_yes(block: World) -> None:
    block.initialized()
    assert block.cli("break", NAME).returncode == 0
    block.lab.change(block.lab.destination(), 3)
    asked = block.cli("resync", NAME)
    assert "is rolled back to" in asked.stdout and "It loses" in asked.stdout
    assert asked.returncode == 1 and "mirrord resync home --yes" in asked.stderr
    assert block.cli("resync", NAME, "--yes").returncode == 0


def test_json_is_one_document_for_every_command(block: World) -> None:
    def read(*words: str, status: int = 0) -> dict[str, object]:
        done = block.cli(*words, "--json")
        assert done.returncode == status, done
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    source, destination = str(block.lab.source()), str(block.lab.destination())
    assert read("create", NAME, source, destination)["status"] == "done"
    assert read("initialize", NAME)["status"] == "done"
    block.lab.change(block.lab.source(), 1)
    assert read("delta", NAME)["states"]
    assert read("update", NAME)["stream_bytes"]
    assert read("update", NAME)["status"] == "unchanged"
    assert read("quiesce", NAME)["status"] == "done"
    assert read("quiesce", NAME)["status"] == "already_quiesced"
    assert read("update", NAME, status=1)["error"] == "refused"
    assert read("resume", NAME)["status"] == "done"
    assert read("abort", NAME)["status"] == "already_idle"
    assert read("snapshots", NAME)["snapshots"]
    assert read("history", NAME)["transfers"]
    assert read("explain", NAME)["findings"]
    assert read("status")["mirrors"]
    assert read("config", "check")["mirrors"] == [NAME]
    assert read("break", NAME)["status"] == "done"
    assert read("break", NAME)["status"] == "already_broken-off"
    assert read("resync", NAME, "--yes")["status"] == "done"
    assert read("reverse", NAME, "--yes")["status"] == "done"
    assert read("restore", NAME, "--all", "--yes")["status"] == "done"
    assert read("delete", NAME, "--yes")["status"] == "done"


def test_output_into_a_closed_pipe_is_no_error(block: World) -> None:
    block.initialized()
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m mirrord history {NAME} | true"],
        env=block.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr and "Error" not in done.stderr


def test_files_cannot_be_restored_from_blocks(block: World) -> None:
    block.initialized()
    refused(block.cli("restore", NAME, "etc/hosts"), 1, "holds blocks, not files", "--all")


def test_a_corrupt_root_record_is_named(block: World) -> None:
    block.initialized()
    root = Path(block.lab.destination().location) / "root"
    root.write_bytes(root.read_bytes()[:-3] + b"xyz")
    assert "the root record is damaged" in block.cli("volume", "check", str(root.parent)).stdout
    (root.parent / "root-copy").write_bytes(root.read_bytes())
    before = root.read_bytes()
    refused(block.cli("update", NAME), 1, str(root.parent))
    assert root.read_bytes() == before


def test_a_source_held_by_a_writer_is_waited_for_then_named(block: World) -> None:
    block.initialized()
    block.lab.change(block.lab.source(), 1)
    with Volume.open(block.lab.source().location, writable=True):
        done = block.cli("update", NAME)
    refused(done, 1, "in use by process", "writing")
    assert block.cli("update", NAME).returncode == 0


@pytest.mark.parametrize(
    ("option", "value", "parts"),
    [
        ("--schedule", "0 0 31 2 *", ("never",)),
        ("--schedule", "every 0s", ("out of range", "every 15m")),
        ("--schedule", "hourli", ("no schedule is called 'hourli'", "'hourly'")),
        ("--schedule", "61 * * * *", ("61",)),
        ("--rpo", "soon", ("'soon'",)),
        ("--throttle", "0", ("quiesce",)),
        ("--keep-destination", "7 dayly", ("dayly",)),
        ("--keep-source", "0", ("'0'",)),
    ],
)
def test_create_with_invalid_arguments_defines_nothing(
    block: World, option: str, value: str, parts: tuple[str, ...]
) -> None:
    done = block.cli(
        "create", NAME, str(block.lab.source()), str(block.lab.destination()), option, value
    )
    refused(done, 2, *parts)
    assert not (block.paths.mirrors / f"{NAME}.toml").exists()


def test_what_create_writes_is_read_again_as_it_was_meant(block: World) -> None:
    done = block.cli(
        "create",
        NAME,
        str(block.lab.source()),
        str(block.lab.destination()),
        "--schedule",
        "*/15 8-18 * * MON-FRI",
        "--rpo",
        "1h30m",
        "--throttle",
        "20MiB/s 08:00-18:00 Mon-Fri, else unlimited",
        "--keep-destination",
        "newest 10, 24 hourly, 7 daily",
    )
    assert done.returncode == 0, done.stderr
    definition = block.service.definitions.load(NAME)
    assert definition.timing.rules == ("*/15 8-18 * * MON-FRI",)
    assert definition.promise.rpo_s == 5400
    assert definition.keep_destination == "newest 10, 24 hourly, 7 daily"
    assert block.cli("config", "check").returncode == 0


def test_schedules_are_shown(block: World) -> None:
    listed = block.cli("schedule", "list")
    assert "hourly" in listed.stdout and "office-hours" in listed.stdout
    block.initialized(schedule="every 15m")
    lines = block.cli("schedule", "next", NAME).stdout.splitlines()
    assert len(lines) == 10 and all("every 15 min" in line for line in lines)
    found = json.loads(block.cli("schedule", "next", NAME, "-n", "3", "--json").stdout)
    times = [each["at_ns"] for each in found["times"]]
    assert len(times) == 3 and times[1] - times[0] == 900 * 10**9


def test_a_monitor_without_a_service_says_that_no_schedule_is_kept(block: World) -> None:
    assert block.cli("monitor").returncode == 3
    block.initialized()
    fine = block.cli("monitor")
    assert fine.returncode == 0 and fine.stdout.startswith(
        "MIRRORD OK - 1 mirror without problems | 'home'="
    )
    file = block.paths.mirrors / f"{NAME}.toml"
    add_lines(file, 'schedule = "hourly"')
    critical = block.cli("monitor")
    assert critical.returncode == 2 and "the daemon is not running" in critical.stdout
    assert block.cli("monitor", "hoem").returncode == 3
    unknown = json.loads(block.cli("monitor", "hoem", "--json").stdout)
    assert unknown["status"] == 3 and "hoem" in unknown["line"]


def test_commands_that_need_a_daemon_or_a_terminal_say_so(block: World) -> None:
    block.initialized()
    refused(block.cli("reload"), 1, "the daemon is not running")
    refused(block.cli("watch"), 2, "needs a terminal")
    assert block.cli("alarms").stdout == "No active alarms.\n"
    assert "No clock change is pending" in block.cli("alarms", "--accept-clock").stdout


def test_a_wrong_settings_file_is_named_with_its_line(block: World) -> None:
    block.initialized()
    settings = block.paths.config / "mirrord.toml"
    for text, part in (
        ("[limits]\ntransfer = 3\n", "mirrord.toml:2: unknown key 'limits.transfer'"),
        ('zone = "Mars/Olympus"\n', "mirrord.toml:1: 'Mars/Olympus' is not a time zone"),
        ('[alarms]\nwebhook = "ftp://x"\n', "mirrord.toml:2: 'alarms.webhook' is invalid"),
        ('[alarms]\nwebhook = "http:///a"\n', "mirrord.toml:2: 'alarms.webhook' is invalid"),
        ('[throttle]\nhost = "0"\n', "mirrord.toml:2"),
    ):
        settings.write_text(text)
        refused(block.cli("config", "check"), 2, part)
        refused(block.cli("daemon"), 2, part)


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "modes", "none.vscsi", "--in-sync", "nan"],
        ["analyze", "compare", "none.vscsi", "--price-transfer", "inf"],
        ["trace", "generate", "hot-spots", "-o", "none.parquet", "--skew", "nan"],
        ["watch", "--every", "nan"],
    ],
    ids=" ".join,
)
def test_a_number_is_finite(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "is not a finite number" in capsys.readouterr().err


def test_a_file_that_cannot_be_changed_is_no_bug(block: World) -> None:
    block.paths.hosts.joinpath("dr.toml").mkdir(parents=True)
    done = block.cli("host", "remove", "dr")
    refused(done, 1, "dr.toml: a file operation failed: Is a directory", "Check that path")
