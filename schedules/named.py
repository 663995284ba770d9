"""Named schedules: the presets in `presets/` and those that administrators write themselves.

The content of a file is passed as a mapping; mirrord.config reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.names import MIRROR_NAME, nearest
from mirrord.schedules.schedule import Schedule, parse_schedule

KEYS = ("description", "run", "zone", "jitter", "windows", "blackouts")


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A schedule with a name. zone: "" to use the zone of the mirror."""

    description: str
    run: tuple[str, ...]
    zone: str
    jitter: str
    windows: tuple[str, ...]
    blackouts: tuple[str, ...]
    #: In its own zone, or in UTC when it has none.
    schedule: Schedule

    def in_zone(self, zone: str) -> Schedule:
        """The schedule in `zone`, unless it has its own zone."""
        if self.zone:
            return self.schedule
        return parse_schedule(
            self.run,
            zone=zone,
            jitter=self.jitter,
            windows=self.windows,
            blackouts=self.blackouts,
        )


def parse_named(name: str, raw: Mapping[str, object], where: str) -> NamedSchedule:
    """The named schedule in a file; `ConfigError` with `where` (the file) when invalid."""
    if MIRROR_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"'{name}' is not a valid name for a schedule",
            where=where,
            why="a name has 1 to 64 letters, digits, dots, dashes or underscores and begins "
            "with a letter or digit",
        )
    for key in raw:
        if key not in KEYS:
            near = nearest(key, KEYS)
            hint = f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(KEYS)}."
            raise ConfigError(f"unknown key '{key}'", where=where, hint=hint)
    if "run" not in raw:
        raise ConfigError(
            "the key 'run' is missing", where=where, hint='Add for example run = "every 15m".'
        )
    run = raw["run"]
    texts = (run,) if isinstance(run, str) else _texts(raw, "run", where)
    zone, jitter = _text(raw, "zone", where), _text(raw, "jitter", where)
    windows, blackouts = _texts(raw, "windows", where), _texts(raw, "blackouts", where)
    try:
        schedule = parse_schedule(
            texts, zone=zone or "UTC", jitter=jitter, windows=windows, blackouts=blackouts
        )
    except UsageError as error:
        raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None
    description = _text(raw, "description", where)
    return NamedSchedule(description, texts, zone, jitter, windows, blackouts, schedule)


def _text(raw: Mapping[str, object], key: str, where: str) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"'{key}' is not a string", where=where, hint=f'Write {key} = "...".')
    return value


def _texts(raw: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    value = raw.get(key, [])
    if isinstance(value, list):
        texts = tuple(text for text in value if isinstance(text, str))
        if len(texts) == len(value):
            return texts
    raise ConfigError(
        f"'{key}' is not a list of strings", where=where, hint=f'Write {key} = ["...", "..."].'
    )
