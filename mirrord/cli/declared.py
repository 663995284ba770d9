"""The command line of the commands that `mirrord/control/commands` declares."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from mirrord.cli.output import answer, confirm, running, show
from mirrord.control.command import Argument, Call, Command, Option, Parameter, Runner
from mirrord.control.methods import declared, methods
from mirrord.core.errors import Aborted, UsageError
from mirrord.core.results import Result
from mirrord.system import clock

_Commands = list[Command[..., Any]]


def functions(module: types.ModuleType) -> dict[str, Callable[..., int]]:
    """The functions for typer of a module's commands, by the words that call them."""
    from mirrord.cli.options import with_parameters

    found = {}
    for words, commands in _groups(module).items():
        ended = any(command.ended_by for command in commands)
        found[words] = with_parameters(
            partial(_called, commands), _parameters(commands).values(), foreground=ended
        )
        found[words].__doc__ = commands[0].doc
    return found


def call_of(module: types.ModuleType, line: list[str]) -> Callable[[], int] | None:
    """The work of a command line of plain words, without typer, which takes time to load; None for
    any other line.
    """
    for words, commands in _groups(module).items():
        own = words.split()
        if line[: len(own)] == own:
            given = plain(_parameters(commands), line[len(own) :])
            return None if given is None else partial(_called, commands, **given)
    return None


def plain(shown: Mapping[str, Parameter], words: Iterable[str]) -> dict[str, Any] | None:
    """The arguments that typer makes of these words; None when there is more to it than to sort
    them: help, what is missing or wrong, other forms of options, other types.
    """
    flags = {flag: each for each in shown.values() for flag in each.flags if _is_option(each)}
    places = [each for each in shown.values() if not _is_option(each)]
    given: dict[str, Any] = {"as_json": False}
    rest = iter(words)
    for word in rest:
        if word == "--json":
            given["as_json"] = True
            continue
        parameter = flags.get(word)
        if parameter is None:
            if not places:
                return None
            parameter = places[0] if places[0].is_many else places.pop(0)
        elif parameter.kind is bool:
            given[parameter.name] = True
            continue
        else:
            word = next(rest, "-")
        if parameter.one is not str or word.startswith("-"):
            return None
        if parameter.is_many:
            given.setdefault(parameter.name, []).append(word)
        elif given.setdefault(parameter.name, word) != word:
            return None
    for name, each in shown.items():
        if name not in given and each.default is ...:
            return None
        given.setdefault(name, each.omitted)
    return given


def _is_option(parameter: Parameter) -> bool:
    return isinstance(parameter.shown, Option)


def _groups(module: types.ModuleType) -> dict[str, _Commands]:
    """A module's commands, by the words that call them."""
    found: dict[str, _Commands] = {}
    for command in declared(module):
        found.setdefault(command.words, []).append(command)
    return found


def _called(commands: _Commands, *, as_json: bool, foreground: bool = False, **given: Any) -> int:
    """Run one of the commands that share their words, chosen by what is given."""
    shown = _parameters(commands)
    given = {name: _checked(shown[name], value) for name, value in given.items()}
    given = {name: value for name, value in given.items() if value is not None}
    command = _chosen(commands, shown, given)
    call = command(
        **{each.name: given[each.name] for each in command.parameters if each.name in given}
    )
    is_verb = command.result is Result
    with running(quiet=as_json or not is_verb) as runner:
        found = runner.run(call)
        if is_verb and found.status == "confirmation-required":
            confirm(found, command=call.line(), as_json=as_json)
            found = runner.run(call._replace(arguments={**call.arguments, "yes": True}))
        if foreground:
            _stay(runner, found, methods()[command.ended_by](call.mirror))
            return 0
    if is_verb:
        show(found, as_json=as_json)
        return 1 if found.status in ("refused", "different", "unproven") else 0
    assert command.text is not None, command.name
    defaults = {each.name: each.default for each in command.parameters}
    lines = command.text(found, {**defaults, **call.arguments})
    answer(command.document(found), lines, as_json=as_json)
    return 0


def _stay(runner: Runner, found: Result, end: Call[Any]) -> None:
    """Show the result, stay until Ctrl-C, and undo it."""
    print(found.text, flush=True)
    try:
        while True:
            clock.sleep_s(3600)
    except Aborted:
        print(runner.run(end).text)


def _switch(command: Command[..., Any]) -> str:
    """The name of the parameter whose presence chooses a command, "" for the default one."""
    if isinstance(command.when, Option):
        return command.when.flags[0].removeprefix("--").replace("-", "_")
    return command.when or ""


def _parameters(commands: _Commands) -> dict[str, Parameter]:
    """All parameters of the commands, and the options that choose between them."""
    found: dict[str, Parameter] = {}
    for command in commands:
        if isinstance(command.when, Option):
            name = _switch(command)
            found[name] = Parameter(name, bool, False, command.when)
        for each in command.parameters:
            default = None if each.name == command.when else each.default
            found.setdefault(each.name, each._replace(default=default))
    return found


def _chosen(
    commands: _Commands, shown: Mapping[str, Parameter], given: Mapping[str, Any]
) -> Command[..., Any]:
    """The command that the given options choose; `UsageError` when they do not fit together."""
    used = {name for name, value in given.items() if value not in (shown[name].default, ())}
    chosen = [command for command in commands if _switch(command) in used]
    by = [_title(shown[_switch(command)]) for command in commands if command.when]
    if not chosen:
        chosen = [command for command in commands if not command.when]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(by)} cannot be combined")
    if not chosen:
        raise UsageError(f"either {' or '.join(by)} is required")
    [command] = chosen
    own = {_switch(command), "yes", *(each.name for each in command.parameters)}
    for name in sorted(used - own):
        title = _title(shown[name])
        if command.when:
            raise UsageError(f"{title} cannot be combined with {_title(shown[_switch(command)])}")
        needed = [
            _title(shown[_switch(other)])
            for other in commands
            if any(each.name == name for each in other.parameters)
        ]
        raise UsageError(f"{title} requires {' or '.join(needed)}", hint="Give both.")
    return command


def _title(parameter: Parameter) -> str:
    if isinstance(parameter.shown, Argument):
        return parameter.shown.metavar.strip("[].")
    return f"'{parameter.flags[0]}'"


def _checked(parameter: Parameter, value: Any) -> Any:
    """A value as the command takes it. An empty option is one of a script's unset variables."""
    if isinstance(parameter.shown, Option) and isinstance(value, str) and not value.strip():
        raise UsageError(f"{_title(parameter)} is empty", hint="Omit it, or give a value.")
    return tuple(value) if isinstance(value, list) else value
