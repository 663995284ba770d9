"""The methods of the socket API: all commands, by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from mirrord.control import commands
from mirrord.control.command import Command


def declared(module: ModuleType) -> Iterator[Command[..., Any]]:
    """The commands that a module declares, in its order."""
    for value in vars(module).values():
        if isinstance(value, Command) and value.work.__module__ == module.__name__:
            yield value


@cache
def methods() -> dict[str, Command[..., Any]]:
    """All commands by name; loads their modules."""
    import pkgutil  # one command is run without

    names = sorted(each.name for each in pkgutil.iter_modules(commands.__path__))
    found = (importlib.import_module(f"{commands.__name__}.{name}") for name in names)
    return {each.name: each for module in found for each in declared(module)}
