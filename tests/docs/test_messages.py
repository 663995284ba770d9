"""Every message that a user may see, as `python -m tests.docs.messages` prints it."""

from __future__ import annotations

import re
from functools import cache

import pytest

from mirrord.core import errors
from mirrord.core.errors import MirrordError
from tests.docs.message_text import Product
from tests.docs.messages import Message, Messages
from tests.docs.test_commands import ALL

#: What no message has.
WRONG = {
    "an unfilled placeholder": r"[{}]",
    "a double space": r"\S  +\S",
    "a space before punctuation": r" [,.;:)](?:\s|$)",
    "two periods": r"(?<![.'])\.\.(?![.'])",
}
#: Where columns are aligned by spaces.
_TABLES = (
    "mirrord/cli/",
    "mirrord/config/writing.py",
    "mirrord/control/commands/",
    "mirrord/control/livetext.py",
    "mirrord/control/statustext.py",
    "mirrord/engine/prune.py",
)
_COMMAND = re.compile(r"['`]mirrord ([a-z][^'`]*)['`]")
_COMMAND_AT_END = re.compile(r": mirrord ([a-z].*?)(?:\.(?: |$)|$)")


@cache
def messages() -> Messages:
    return Messages(Product())


def lines(message: Message) -> list[str]:
    return [line.strip() for text in (message.text, message.hint) for line in text.split("\n")]


def test_each_expression_in_a_message_has_a_sample() -> None:
    assert messages().missing == [], "add it to tests/docs/message_samples.txt"
    assert len(messages().all) > 2000


def test_every_kind_of_error_appears() -> None:
    kinds = {
        code for code, each in MirrordError.by_code.items() if each.__module__ == errors.__name__
    }
    assert kinds - {each.kind for each in messages().all} == set()


@pytest.mark.parametrize("rule", WRONG)
def test_no_message_has(rule: str) -> None:
    found = [
        each
        for each in messages().all
        for line in lines(each)
        if re.search(WRONG[rule], line)
        and not (rule == "a double space" and each.module.startswith(_TABLES))
    ]
    assert list(map(str, found)) == []


def test_errors_are_not_sentences_and_hints_are() -> None:
    """A hint may also end with a command or a line to copy, after a colon."""
    for each in messages().all:
        assert not each.what.endswith("."), each
        assert not each.hint or re.search(r"[.?)]$|: (?:(?!: |\. ).)+$", each.hint), each


def test_each_command_in_a_message_exists() -> None:
    count = 0
    for each in messages().all:
        found = _COMMAND.findall(f"{each.text} {each.hint}") + _COMMAND_AT_END.findall(each.hint)
        for command in found:
            words = command.split()
            is_group = any(name.startswith(f"mirrord {words[0]} ") for name in ALL)
            name = " ".join(["mirrord", *words[: 2 if is_group else 1]])
            options = [word for word in words if word.startswith("-") and word != "--help"]
            assert name in ALL and set(options) <= set(ALL[name]), f"{each}: '{command}'"
            count += 1
    assert count > 200
