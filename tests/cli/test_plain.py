"""Command lines of plain words are taken as typer takes them, or left to it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from mirrord.cli.declared import _groups, _parameters, functions, plain
from mirrord.cli.table import commands, modules_of
from mirrord.config import strict
from mirrord.control.command import Option, Parameter
from mirrord.core.errors import Aborted

_MODULES = [module for name in commands() for module in modules_of(name) if ".control." in module]
_NAMES = ["home", "two words", "five", "5"]
_RARE = ["", "-", "--", "-x", "--jso", "--yes=1", "--help", "-5"]


@cache
def lines() -> dict[str, tuple[dict[str, Parameter], Callable[[list[str]], Any]]]:
    """By the words of a command: its parameters, and what typer makes of a line's further words:
    the arguments, or None for help and errors.
    """
    found = {}
    for name in _MODULES:
        module = importlib.import_module(name)
        for words, function in functions(module).items():
            found[words] = _parameters(_groups(module)[words]), _typer(function)
    return found


def _typer(function: Callable[..., int]) -> Callable[[list[str]], Any]:
    seen: list[dict[str, Any]] = []

    def recorder(**given: Any) -> None:
        seen.append(given)

    recorder.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    recorder.__annotations__ = function.__annotations__
    app = typer.Typer()
    app.command()(recorder)

    def call(words: list[str]) -> dict[str, Any] | None:
        seen.clear()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            app(args=words, standalone_mode=False)
        return seen[0] if seen else None

    return call


@pytest.mark.parametrize("module", _MODULES)
def test_plain_words_are_what_typer_makes_of_them(module: str) -> None:
    for words in _groups(importlib.import_module(module)):
        _compare(words)


def _compare(words: str) -> None:
    chosen, plain_lines = random.Random(words), 0
    parameters, by_typer = lines()[words]
    flags = ["--json", *(flag for each in parameters.values() for flag in each.flags)]
    for _ in range(600):
        rare = [*flags, *_RARE] if chosen.random() < 0.5 else flags
        line = [chosen.choice(chosen.choice((_NAMES, rare))) for _ in range(chosen.randrange(6))]
        found = plain(parameters, line)
        if found is None:
            continue
        plain_lines += 1
        wanted = by_typer(line)
        assert wanted is not None, line
        wanted.pop("foreground", None)
        assert found == wanted, line
    assert plain_lines


@pytest.mark.parametrize(
    ("words", "line", "arguments"),
    [
        ("update", ["home"], {"name": "home"}),
        ("status", [], {"name": None}),
        ("delete", ["-y", "home", "--keep-snapshots"], {"yes": True, "keep_snapshots": True}),
        ("create", ["a", "b", "--member", "c", "--member", "d"], {"members": ["c", "d"]}),
        ("restore", ["home", "one", "two"], {"files": ["one", "two"]}),
        ("break", ["home", "--at", "x"], {"place": "x"}),
    ],
)
def test_ordinary_lines_need_no_typer(
    words: str, line: list[str], arguments: dict[str, Any]
) -> None:
    parameters, _ = lines()[words]
    found = plain(parameters, line)
    assert found is not None and found.items() >= arguments.items()
    assert all(
        isinstance(each.shown, Option) or found[name]
        for name, each in parameters.items()
        if each.default is ...
    )


def test_what_is_missing_or_wrong_is_left_to_typer() -> None:
    parameters, _ = lines()["update"]
    for line in ([], ["--help"], ["a", "b"], ["a", "--jso"], ["a", "--json=1"], ["--", "a"]):
        assert plain(parameters, line) is None


def test_an_update_loads_nothing_slow_that_it_does_not_need() -> None:
    """`inspect` alone, which dataclasses load too, took a fourteenth of a command's time."""
    program = (
        "import sys, mirrord.cli.declared, mirrord.cli.main, mirrord.control.commands.update, "
        "mirrord.daemon.build, mirrord.control.api, mirrord.engine.update\n"
        "from mirrord.core.endpoint import parse_endpoint\n"
        "from mirrord.drivers.registry import open_driver\n"
        "open_driver(parse_endpoint('btrfs:/nowhere/at/all'))\n"
        "print([name for name in ('inspect', 'dataclasses', 'typer') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_an_interrupt_while_a_command_loads_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "interrupting.py").write_text(
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mirrord.core.errors':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import interrupting; "
        "from mirrord.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_nothing_is_collected_while_a_command_loads() -> None:
    program = (
        "import gc, os, sys; from mirrord.cli.main import main; sys.argv[1:] = ['--version']; "
        "os._exit = lambda status: print(gc.get_threshold()[0]); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(done.stdout.split()[-1]) >= 50_000


_PASSED_OVER = """
import os, signal, time
from mirrord.cli.main import _Signals
from mirrord.core.errors import Aborted, MirrordError

signals = _Signals()
signals.install()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except MirrordError as error:  # as `status` does, when an end is not reached
    first = str(error)
try:
    time.sleep(5)
except Aborted as error:
    assert str(error) == first
    os.kill(os.getpid(), signal.SIGINT)  # while what it interrupted is cleaned up
    time.sleep(1.5)
    print("ended")
signals.ignore()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1.5)
print("nothing more")
"""


def test_a_signal_that_was_taken_for_another_failure_is_raised_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PASSED_OVER], check=False, capture_output=True, text=True
    )
    assert (done.stdout.split("\n"), done.stderr) == (["ended", "nothing more", ""], "")


def test_a_signal_is_not_taken_for_an_invalid_value() -> None:
    def check(_value: Any) -> None:
        raise Aborted("interrupted", why="SIGINT")

    with pytest.raises(Aborted):
        strict.read("keep = 2", "home.toml", {"keep": check})
