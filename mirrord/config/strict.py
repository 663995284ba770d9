"""Reads TOML strictly: an unknown key or an invalid value is an error with file and line."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.names import did_you_mean
from mirrord.system import files

#: key -> a function that converts its value (raises ValueError with what is expected, or a
#: MirrordError), or the keys of a table.
Keys = Mapping[str, "Callable[[Any], Any] | Keys"]


def text(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a string in quotes")
    return value


def zone(value: Any) -> str:
    """The name of a time zone."""
    from mirrord.schedules.zones import check_zone  # (slow to load, and rarely named)

    return check_zone(text(value))


def texts(value: Any) -> tuple[str, ...]:
    """A string, or a list of strings."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(item, str) and item for item in listed):
        raise ValueError('expected a string or a list of strings, for example ["one", "two"]')
    return tuple(listed)


def program(value: Any) -> tuple[str, ...]:
    """A program with its arguments: a list, because no shell is used."""
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(item, str) and "\0" not in item for item in value)
        or not value[0].startswith("/")
    ):
        raise ValueError(
            'expected a program with its arguments, for example ["/usr/local/bin/freeze", "db"]: '
            "the absolute path first, no shell"
        )
    return tuple(value)


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def integer(low: int, high: int) -> Callable[[Any], int]:
    """An integer from low to high."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"expected an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Callable[[Any], float]:
    """A number from low to high."""

    def check(value: Any) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not low <= value <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}")
        return float(value)

    return check


def duration(value: Any) -> float:
    """A duration such as `90s`, in seconds; more than zero."""
    from mirrord.core.units import parse_duration

    seconds = parse_duration(text(value))
    if not seconds:
        raise UsageError(
            f"'{value}' is not longer than 0 s", hint="Write for example 90s or 15 min."
        )
    return seconds


def matching(pattern: str, otherwise: str) -> Callable[[Any], str]:
    """A string that all of the pattern matches; `otherwise` says what is expected."""

    def check(value: Any) -> str:
        if not re.fullmatch(pattern, text(value)):
            raise ValueError(otherwise)
        return str(value)

    return check


def one_of(*words: str) -> Callable[[Any], str]:
    """One of these words."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError("expected one of " + ", ".join(f'"{word}"' for word in words))
        return str(value)

    return check


_WORD = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_PATH = rf"({_WORD}(?:\s*\.\s*{_WORD})*)"
_HEADER = re.compile(rf"\s*\[\[?\s*{_PATH}\s*\]\]?\s*(#.*)?$")
_PAIR = re.compile(rf"\s*{_PATH}\s*=")


def line_of(source: str, key: str, table: str = "") -> int:
    """The line of a key, or else of its table (which may be an inline one), or 1."""
    wanted = [*(table.split(".") if table else []), key]
    best, depth = 1, 0
    above: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        if header := _HEADER.match(line):
            path = above = _parts(header[1])
        elif pair := _PAIR.match(line):
            path = above + _parts(pair[1])
        else:
            continue
        if path[: len(wanted)] == wanted:
            return number
        if len(path) > depth and wanted[: len(path)] == path:
            best, depth = number, len(path)
    return best


def _parts(path: str) -> list[str]:
    return [word.strip("\"'") for word in re.findall(_WORD, path)]


def source_of(file: Path, what: str) -> str:
    """The text of a file, with its ends of lines. `ConfigError` when it cannot be read; what:
    "the definition"; but `FileNotFoundError`.
    """
    try:
        # A pipe would be waited for until somebody writes to it.
        with (
            files.opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor,
            open(descriptor, "rb", closefd=False) as stream,
        ):
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is a named pipe, not a file")
            return stream.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{what} cannot be read", where=f"{file}:{line}", why="it is not UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{what} cannot be read", where=str(file), why=str(error.strerror)
        ) from error


def loads(source: str, file: str) -> dict[str, Any]:
    """The values in `source` as TOML has them; `ConfigError` names the line that is not TOML."""
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"{file}:{line[1]}" if line else file
        raise ConfigError("this is not valid TOML", where=where, why=str(error)) from None
    except RecursionError:
        raise ConfigError(
            "this is not valid TOML", where=file, why="it is nested too deep"
        ) from None
    except ValueError:  # `int` refuses more than 4300 digits
        raise ConfigError(
            "this is not valid TOML", where=file, why="an integer has too many digits"
        ) from None


def read(
    source: str, file: str, keys: Keys, raw: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values in `source`, each converted by `keys`; tables as dicts. raw: the result of
    `loads`, if already known.
    """

    def where_of(key: str, table: str) -> str:
        return f"{file}:{line_of(source, key, table)}"

    return _table(loads(source, file) if raw is None else raw, keys, where_of, "", top=keys)


def _table(
    raw: Mapping[str, Any],
    keys: Keys,
    where_of: Callable[[str, str], str],
    table: str,
    *,
    top: Keys,
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in raw.items():
        check = keys.get(key) or keys.get("*")
        shown = f"{table}.{key}" if table else key
        if check is None:
            hint = did_you_mean(key, keys, f"Known keys: {', '.join(keys)}.")
            if key in top:
                hint = f"'{key}' belongs at the top of the file, above the first table."
            raise ConfigError(f"unknown key '{shown}'", where=where_of(key, table), hint=hint)
        if isinstance(check, Mapping):
            if not isinstance(value, dict):
                raise ConfigError(
                    f"'{shown}' is invalid", where=where_of(key, table), why="expected a table"
                )
            values[key] = _table(value, check, where_of, shown, top=top)
            continue
        try:
            values[key] = check(value)
        except ValueError as error:
            raise ConfigError(
                f"'{shown}' is invalid", where=where_of(key, table), why=str(error)
            ) from None
        except (ConfigError, UsageError) as error:
            raise ConfigError(
                error.what, where=where_of(key, table), why=error.why, hint=error.hint
            ) from None
    return values
