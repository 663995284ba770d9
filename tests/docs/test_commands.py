"""What the documents say of the command line is what the command line has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from mirrord.cli import table
from mirrord.cli.main import build, run
from tests.docs import documents

ROOT = Path(__file__).parents[2]
COMMANDS_MD = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


def commands(group: TyperGroup, path: str) -> Iterator[tuple[str, list[str]]]:
    for name, command in group.commands.items():
        options = [option for parameter in command.params for option in parameter.opts]
        yield f"{path} {name}", [option for option in options if option.startswith("-")]
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path} {name}")


ALL = dict(commands(typer.main.get_group(build(list(table.commands()))), "mirrord"))


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_documented(name: str) -> None:
    assert name in COMMANDS_MD
    for option in ALL[name]:
        assert re.search(rf"[`\[ ]{option}\b", COMMANDS_MD), option


def test_every_command_that_is_documented_exists() -> None:
    for words in re.findall(r"`(mirrord [a-z][a-z-]*(?: [a-z]+)?)\b", COMMANDS_MD):
        assert words in ALL or " ".join(words.split()[:2]) in ALL, words


def test_version_and_help_need_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mirrord ")
    assert run([]) == 2
    assert "error:" not in capsys.readouterr().err


@pytest.mark.parametrize("name", documents.DOCUMENTS)
def test_documents_are_as_the_declarations_make_them(name: str) -> None:
    made = documents.made(name)
    assert (ROOT / name).read_text(encoding="utf-8") == made, "python -m tests.docs.documents"
