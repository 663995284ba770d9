"""Makes a `Schedule` from the settings of a definition: named schedules are resolved here.

A named schedule is a user-defined file `schedules.d/NAME.toml`, or one of the presets that come
with mirrord (schedules/presets/NAME.toml); the user-defined one takes precedence.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path

from mirrord.config import strict
from mirrord.config.reading import is_name
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.model import Definition, Timing
from mirrord.core.names import check_name, did_you_mean
from mirrord.core.reports import NamedSchedule
from mirrord.schedules.schedule import Schedule, parse_schedule

KEYS: strict.Keys = {
    "description": strict.text,
    "run": strict.texts,
    "zone": strict.zone,
    "jitter": strict.text,
    "windows": strict.texts,
    "blackouts": strict.texts,
}


class Schedules:
    """The schedules that definitions may name."""

    def __init__(self, folder: Path, *, zone: str = "UTC") -> None:
        self.folder, self.zone = folder, zone

    def names(self) -> list[str]:
        """All names: user-defined ones and presets."""
        own = {path.stem for path in self.folder.glob("*.toml")}
        return sorted(own | set(presets()))

    def named(self, name: str) -> NamedSchedule:
        """A named schedule; `ConfigError` with the closest name when there is none."""
        path = self.folder / f"{name}.toml"
        try:
            return _parse_file(name, strict.source_of(path, "the schedule"), str(path))
        except FileNotFoundError:
            pass
        found = presets().get(name)
        if found is not None:
            return found
        known = self.names()
        raise ConfigError(
            f"no schedule is called '{name}'",
            hint=did_you_mean(name, known, f"Known: {', '.join(known)}."),
        )

    def of(self, definition: Definition) -> Schedule | None:
        """When a mirror runs; None when it has no schedule. `ConfigError` names its file."""
        return self._of(definition.timing, definition.file)

    def of_verification(self, definition: Definition) -> Schedule | None:
        """When a mirror is verified; else as `of`."""
        found = self._of(definition.verification_timing, definition.file)
        if found is not None and found.lag_s is not None:
            raise ConfigError(
                "a lag target cannot be the schedule of a verification",
                where=definition.file,
                hint='Write times, for example: verify_schedule = "30 2 1 * *"',
            )
        return found

    def _of(self, timing: Timing, file: str) -> Schedule | None:
        if not timing.rules:
            return None
        try:
            return self.parsed(timing)
        except (ConfigError, UsageError) as error:
            where = error.where or file
            raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None

    def parsed(self, timing: Timing) -> Schedule:
        """The schedule of such settings; they override those of a named schedule. `UsageError`,
        `ConfigError`.
        """
        if len(timing.rules) == 1 and is_name(timing.rules[0]):
            named = self.named(timing.rules[0])
            timing = Timing(
                rules=named.run,
                zone=timing.zone or named.zone,
                jitter=timing.jitter or named.jitter,
                windows=timing.windows or named.windows,
                blackouts=timing.blackouts or named.blackouts,
            )
        return _parsed(timing, self.zone)


@lru_cache(maxsize=4096)
def _parsed(timing: Timing, zone: str) -> Schedule:
    return parse_schedule(
        timing.rules,
        zone=timing.zone or zone,
        jitter=timing.jitter,
        windows=timing.windows,
        blackouts=timing.blackouts,
    )


@lru_cache(maxsize=1)
def presets() -> dict[str, NamedSchedule]:
    """The named schedules that come with mirrord."""
    found = {}
    for entry in resources.files("mirrord.schedules").joinpath("presets").iterdir():
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            found[name] = _parse_file(name, entry.read_text(encoding="utf-8"), "mirrord")
    return dict(sorted(found.items()))


def _parse_file(name: str, source: str, origin: str) -> NamedSchedule:
    values = strict.read(source, origin, KEYS)
    if "run" not in values:
        raise ConfigError(
            "the key 'run' is missing", where=origin, hint='Add for example run = "every 15m".'
        )
    found = NamedSchedule(
        name,
        values.get("description", ""),
        values["run"],
        values.get("zone", ""),
        values.get("jitter", ""),
        values.get("windows", ()),
        values.get("blackouts", ()),
        origin,
    )
    try:
        check_name(name, "a schedule")
        _parsed(Timing(found.run, found.zone, found.jitter, found.windows, found.blackouts), "UTC")
    except UsageError as error:
        raise ConfigError(error.what, where=origin, why=error.why, hint=error.hint) from None
    return found
