"""Mirror definitions in `mirrors.d/NAME.toml`: read strictly, written so that people like them.

Strict: an unknown key is an error that names the file, the line and the nearest known key.
docs/config.md describes each key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, MirrordError, NotFound, Refused
from mirrord.core.model import Definition, Endpoint
from mirrord.core.names import check_mirror_name, nearest
from mirrord.system import files

KEEP_MAX = 10_000


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text in quotes is needed")
    return value


def _identity(value: Any) -> str:
    if not re.fullmatch(r"[0-9a-z]{1,32}", _text(value)):
        raise ValueError("an id is 1 to 32 digits and lower-case letters")
    return str(value)


def _keep(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= KEEP_MAX:
        raise ValueError(f"a whole number from 1 to {KEEP_MAX} is needed")
    return value


def _policy(value: Any) -> str:
    if value != "async":
        raise ValueError('the only policy of this version is "async"')
    return str(value)


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('a list of texts is needed, for example ["daily.*"]')
    return tuple(value)


_KEYS: dict[str, Callable[[Any], Any]] = {
    "id": _identity,
    "source": lambda value: parse_endpoint(_text(value), what="source"),
    "destination": lambda value: parse_endpoint(_text(value), what="destination"),
    "policy": _policy,
    "keep_source": _keep,
    "keep_destination": _keep,
    "snapshots": _patterns,
}
_REQUIRED = ("id", "source", "destination")


def _line_of(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]|\s*\[+\s*{re.escape(key)}\b", line):
            return number
    return 1


def parse(name: str, text: str, file: str) -> Definition:
    """The definition in `text`; `ConfigError` with file and line when it is not one."""
    try:
        check_mirror_name(name)
    except MirrordError as error:
        raise ConfigError(error.what, where=file, why=error.why) from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{file}:{line[1]}" if line else file
        raise ConfigError("this is not valid TOML", where=where, why=str(error)) from None
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where = f"{file}:{_line_of(text, key)}"
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(_KEYS)}."
            raise ConfigError(f"unknown key '{key}'", where=where, hint=hint)
        try:
            values[key] = _KEYS[key](value)
        except ValueError as error:
            raise ConfigError(f"'{key}' is wrong", where=where, why=str(error)) from None
        except MirrordError as error:
            raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None
    for key in _REQUIRED:
        if key not in values:
            raise ConfigError(f"the key '{key}' is missing", where=file)
    return Definition(name=name, file=file, **values)


def render(definition: Definition) -> str:
    """A definition as its file's text."""

    def quoted(text: object) -> str:
        return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'

    patterns = ", ".join(quoted(pattern) for pattern in definition.snapshots)
    return (
        f"# The mirror '{definition.name}'. Each key: docs/config.md. "
        "Check it with 'mirrord config check'.\n"
        f"id = {quoted(definition.id)}\n"
        f"source = {quoted(definition.source)}\n"
        f"destination = {quoted(definition.destination)}\n"
        f"policy = {quoted(definition.policy)}\n"
        "\n"
        "# How many reference snapshots stay at each end (the base is always one of them).\n"
        f"keep_source = {definition.keep_source}\n"
        f"keep_destination = {definition.keep_destination}\n"
        "\n"
        "# The source's own snapshots that go along: glob patterns of their names.\n"
        f"snapshots = [{patterns}]\n"
    )


class Definitions:
    """The folder of definitions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where the definition of a mirror lies, or would lie."""
        return self.folder / f"{check_mirror_name(name)}.toml"

    def names(self) -> list[str]:
        """All that are there, whether right or wrong."""
        return sorted(path.stem for path in self.folder.glob("*.toml"))

    def load(self, name: str) -> Definition:
        """One by its name; `NotFound` with the nearest name when there is none."""
        path = self.file(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            near = nearest(name, self.names())
            known = ", ".join(self.names()[:8])
            if near:
                hint = f"Did you mean '{near[0]}'?"
            elif known:
                hint = f"There are: {known}."
            else:
                hint = "Make one with 'mirrord create NAME SOURCE DESTINATION'."
            raise NotFound(f"no mirror is called '{name}'", hint=hint) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "the definition cannot be read", where=str(path), why=str(error)
            ) from error
        return parse(name, text, str(path))

    def all(self) -> list[Definition]:
        """All definitions, checked against each other. `ConfigError` at the first wrong one."""
        found = [self.load(name) for name in self.names()]
        check_together(found)
        return found

    def check_free(self, name: str) -> Path:
        """The file for a new definition; `Refused` when the name is taken."""
        path = self.file(name)
        if path.exists():
            raise Refused(
                f"a mirror called '{name}' exists already",
                where=str(path),
                hint=f"Choose another name, or 'mirrord delete {name}' first.",
            )
        return path

    def add(self, definition: Definition) -> Definition:
        """Write a new definition; `Refused` when the name is taken."""
        path = self.check_free(definition.name)
        check_together([*self.all(), definition])
        files.write_atomic("CREATE:DEFINITION", path, render(definition).encode())
        return definition._replace(file=str(path))

    def swap(self, name: str, source: Endpoint, destination: Endpoint) -> Definition:
        """Set source and destination, keeping every other line and comment as it is."""
        path = self.file(name)
        text = path.read_text(encoding="utf-8")
        for key, endpoint in (("source", source), ("destination", destination)):
            value = str(endpoint).replace("\\", "\\\\").replace('"', '\\"')
            line = f'{key} = "{value}"'.replace("\\", r"\\")
            text, count = re.subn(rf"(?m)^\s*{key}\s*=.*$", line, text)
            if count != 1:
                raise ConfigError(f"the line of '{key}' was not found", where=str(path))
        definition = parse(name, text, str(path))
        files.write_atomic("REVERSE:DEFINITION", path, text.encode())
        return definition

    def remove(self, name: str) -> None:
        """Remove a definition, if it is there."""
        files.remove_file("DELETE:DEFINITION", self.file(name))


def check_together(definitions: list[Definition]) -> None:
    """`ConfigError` when two definitions cannot both be meant."""
    by_destination: dict[str, Definition] = {}
    by_id: dict[str, Definition] = {}
    for definition in definitions:
        _check_ends(definition)
        other = by_destination.setdefault(str(definition.destination), definition)
        if other is not definition:
            raise ConfigError(
                f"the mirrors '{other.name}' and '{definition.name}' have one destination",
                where=definition.file or definition.name,
                why=str(definition.destination),
                hint="Give each mirror a destination of its own.",
            )
        other = by_id.setdefault(definition.id, definition)
        if other is not definition:
            raise ConfigError(
                f"the mirrors '{other.name}' and '{definition.name}' have one id",
                where=definition.file or definition.name,
                why=definition.id,
                hint="A copied definition needs an id of its own: change it to any other.",
            )


def _check_ends(definition: Definition) -> None:
    source, destination = definition.source, definition.destination
    where = definition.file or definition.name
    if source.kind != destination.kind:
        raise ConfigError(
            f"a {source.kind} volume cannot be mirrored to a {destination.kind} volume",
            where=where,
            hint="Both ends of a mirror are of one kind.",
        )
    if source == destination:
        raise ConfigError("source and destination are the same", where=where, why=str(source))
    inner, outer = destination.location + "/", source.location.rstrip("/") + "/"
    if inner.startswith(outer):
        raise ConfigError(
            "the destination lies inside the source",
            where=where,
            why=f"{destination.location} is below {source.location}",
            hint="Give a destination outside of it, best on another disk.",
        )
    if outer.startswith(inner):
        raise ConfigError(
            "the source lies inside the destination",
            where=where,
            why=f"{source.location} is below {destination.location}",
            hint="Give a destination outside of it, best on another disk.",
        )
