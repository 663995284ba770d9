"""The policy of a live mirror in its definition: its name, and the tables with its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirrord.config import strict
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.live import Mode
from mirrord.core.policies import (
    DURABLE,
    DYNAMIC,
    POLICY_NAMES,
    SCHEDULED,
    WRITTEN,
    PolicyKeys,
    ScheduledKeys,
)
from mirrord.core.units import MERGE_ABOVE, WINDOW, WINDOW_MAX, parse_size, window_argument


def policy(value: Any) -> str:
    """The name of a policy."""
    name = strict.text(value)
    if name in POLICY_NAMES:
        return name
    from mirrord.policies.registry import check_name  # slow to import, and rarely needed

    try:
        return check_name(name)
    except UsageError as error:
        raise ValueError(f"{error.what}; {error.hint}") from None


def size(value: Any) -> int:
    """A size that a primary can keep in memory."""
    found = parse_size(strict.text(value))
    if not 0 < found <= WINDOW_MAX:
        raise UsageError(
            f"'{value}' is out of range",
            why="the primary keeps these writes in memory",
            hint="Give at most 1GiB.",
        )
    return found


def ack(value: Any) -> str:
    """Where a write is when it is answered in sync."""
    if value not in (WRITTEN, DURABLE):
        raise ValueError(f"expected {WRITTEN} or {DURABLE}; in semi-sync it is always journaled")
    return str(value)


def _hours(value: Any) -> tuple[str, ...]:
    from mirrord.schedules.spans import parse_span

    found = strict.texts(value)
    for each in found:
        parse_span(each)
    if not found:
        raise ValueError('expected at least one, for example "Mon-Fri 08:00-18:00"')
    return found


def _inner(value: Any) -> str:
    if value == SCHEDULED:
        raise ValueError("expected another policy than scheduled")
    return policy(value)


#: By the keys of the file, those of `DynamicKeys`.
_DYNAMIC = {
    "max_lat": "max_lat_s",
    "max_rpo": "max_rpo_bytes",
    "window": "window_s",
    "lower": "lower",
    "returning": "returning",
    "sync_below": "sync_bytes",
    "hold_down": "hold_down_s",
    "buffer": "buffer_bytes",
}
TABLES: strict.Keys = {
    DYNAMIC: {
        "max_lat": strict.duration,
        "max_rpo": size,
        "window": strict.duration,
        "lower": strict.number(0, 1),
        "returning": strict.number(0, 1),
        "sync_below": size,
        "hold_down": strict.duration,
        "buffer": size,
    },
    SCHEDULED: {"hours": _hours, "inside": _inner, "outside": _inner},
    "policy_options": {"*": strict.text},
}


def keys_of(values: Mapping[str, Any], where_of: Callable[[str, str], str]) -> PolicyKeys:
    """The keys in a definition's tables; `ConfigError` when a table that is needed is missing, or
    values do not fit. where_of: file and line of a key in a table.
    """
    dynamic, scheduled = values.get(DYNAMIC), values.get(SCHEDULED)
    used = {values.get("policy", "")}
    if scheduled is not None:
        _demand(SCHEDULED, scheduled, ("hours", "inside", "outside"), where_of)
        used |= {scheduled["inside"], scheduled["outside"]}
        window = window_argument(values.get("window", WINDOW))
        if Mode.SEMI_SYNC.value in used and window.endswith("s"):
            raise ConfigError(
                "the window of 'semi-sync' in 'scheduled' is a duration",
                where=where_of("window", ""),
                hint="Give it in bytes, for example 16MiB.",
            )
    elif SCHEDULED in used:
        raise _missing(SCHEDULED, 'hours = "Mon-Fri 08:00-18:00"', where_of)
    if DYNAMIC in used and dynamic is None:
        raise _missing(DYNAMIC, 'max_lat = "4ms"', where_of)
    found = None
    if dynamic is not None:
        _demand(DYNAMIC, dynamic, ("max_lat",), where_of)
        try:
            from mirrord.core.dynamickeys import DynamicKeys  # (slow to load)

            found = DynamicKeys(
                merge_bytes=values.get("merge_above", MERGE_ABOVE),
                **{_DYNAMIC[key]: value for key, value in dynamic.items()},
            )
        except UsageError as error:
            where = where_of("window", DYNAMIC)
            raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None
    return PolicyKeys(
        found,
        None if scheduled is None else ScheduledKeys(**scheduled),
        tuple(values.get("policy_options", {}).items()),
    )


def _missing(table: str, example: str, where_of: Callable[[str, str], str]) -> ConfigError:
    return ConfigError(
        f"the policy '{table}' needs the table [{table}]",
        where=where_of("policy", ""),
        hint=f"Add it at the end of the file, for example with {example} (docs/policies.md).",
    )


def _demand(
    table: str,
    values: Mapping[str, Any],
    keys: tuple[str, ...],
    where_of: Callable[[str, str], str],
) -> None:
    for key in keys:
        if key not in values:
            raise ConfigError(f"the key '{table}.{key}' is missing", where=where_of(key, table))


def written(keys: PolicyKeys) -> list[str]:
    """The lines of the tables."""
    lines: list[str] = []
    if keys.dynamic is not None:
        from mirrord.core.dynamickeys import DynamicKeys

        standard = DynamicKeys(keys.dynamic.max_lat_s)
        lines += ["# The keys of the policy (docs/policies.md).", f"[{DYNAMIC}]"]
        for key, name in _DYNAMIC.items():
            value = getattr(keys.dynamic, name)
            if key == "max_lat" or value != getattr(standard, name):
                lines.append(f"{key} = {_text(name, value)}")
        lines.append("")
    return lines


def _text(name: str, value: float) -> str:
    if name.endswith("_s"):
        number, unit = (value * 1000, "ms") if value < 1 else (value, "s")
        return f'"{number:.6f}'.rstrip("0").rstrip(".") + f'{unit}"'
    return f'"{value}"' if name.endswith("_bytes") else f"{value:g}"
