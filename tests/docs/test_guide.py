"""The guide is executed: the README's session on block volumes, command by command, for real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = "### Without root, with block volumes"
#: The folder in which the guide says that its session begins.
FOLDER = "/home/ann/try"
_END = "\x01"

#: What differs from run to run. The order matters: rates before sizes and durations.
_MASKS = (
    (r"\b(mirrord|diverged)\.[0-9a-z]+\.\d{8}T\d{6}Z\.", r"\1.ID.TIME."),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "MOMENT"),
    (r"[\d.]+ ([KMGT]i)?B/s", "RATE"),
    (r"\b[\d.]+ (ms|s|min)\b( \d+ s)?", "DURATION"),
    ("[▁▂▃▄▅▆▇█]+", "BARS"),
    (r" +", " "),
)


@dataclass(frozen=True)
class Step:
    """A command of the guide and what it prints there."""

    command: str
    output: tuple[str, ...]


def section() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^{SECTION}$(.*?)^##? ", text, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no section '{SECTION}'"
    return found[1]


def guide() -> list[Step]:
    """The commands of the section's console blocks; a line that begins with `$ ` is one."""
    steps: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], ()))
            else:
                assert steps, f"output before the first command: {line}"
                steps[-1] = Step(steps[-1].command, (*steps[-1].output, line))
    return steps


def masked(line: str) -> str:
    for pattern, word in _MASKS:
        line = re.sub(pattern, word, line)
    return line.rstrip()


def unprivileged() -> list[str]:
    """What root puts before a command to take every privilege from it (a user namespace in which
    it is nobody), where the kernel lets it.
    """
    prefix = ["unshare", "--user"]
    if os.geteuid() != 0 or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        return []
    return prefix


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[str]]]:
    """Exit status and output of every step, run by one shell in a folder of its own."""
    folder = tmp_path_factory.mktemp("guide")
    script = "exec 2>&1\n" + "".join(
        f"{step.command}\nprintf '{_END}%d{_END}' $?\n" for step in guide()
    )
    environment = {
        **os.environ,
        "MIRRORD_HOME": str(folder / "mirrord"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        [*unprivileged(), "bash"],
        input=script,
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert not done.stderr, done.stderr
    parts = done.stdout.replace(str(folder), FOLDER).split(_END)
    return [
        (int(status), output.splitlines())
        for output, status in zip(parts[0::2], parts[1::2], strict=False)
    ]


def test_the_guide_has_the_whole_story() -> None:
    told = " ".join(step.command for step in guide())
    for verb in (
        "create",
        "initialize",
        "delta",
        "update",
        "status",
        "break",
        "resync",
        "reverse",
        "restore",
    ):
        assert f"mirrord {verb} " in told


@pytest.mark.parametrize("number", range(len(guide())), ids=lambda n: guide()[n].command)
def test_a_command_of_the_guide_does_what_the_guide_shows(
    results: list[tuple[int, list[str]]], number: int
) -> None:
    step = guide()[number]
    status, output = results[number]
    fails = any(line.startswith("error:") for line in step.output)
    assert (status != 0) is fails, "\n".join(output)
    assert [masked(line) for line in output] == [masked(line) for line in step.output]
