"""Makes a `Schedule` from the settings of a definition: named schedules are resolved here.

A named schedule is a user-defined file `schedules.d/NAME.toml`, or one of the presets that come
with mirrord (schedules/presets/NAME.toml); the user-defined one takes precedence.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from mirrord.config import strict
from mirrord.config.reading import is_name
from mirrord.core.errors import ConfigError, MirrordError
from mirrord.core.model import Definition, Timing
from mirrord.core.names import did_you_mean
from mirrord.schedules.named import NamedSchedule, parse_named
from mirrord.schedules.schedule import Schedule, parse_schedule


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
            return _parse_file(name, path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "the schedule cannot be read", where=str(path), why=str(error)
            ) from error
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
            if len(timing.rules) == 1 and is_name(timing.rules[0]):
                return self._from_name(timing)
            return _parsed(timing, self.zone)
        except MirrordError as error:
            where = error.where or file
            raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None

    def _from_name(self, timing: Timing) -> Schedule:
        """Settings in the definition override those of the named schedule."""
        named = self.named(timing.rules[0])
        return _parsed(
            Timing(
                rules=named.run,
                zone=timing.zone or named.zone,
                jitter=timing.jitter or named.jitter,
                windows=timing.windows or named.windows,
                blackouts=timing.blackouts or named.blackouts,
            ),
            self.zone,
        )


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
            found[name] = _parse_file(name, entry.read_text(encoding="utf-8"), f"preset {name}")
    return dict(sorted(found.items()))


def _parse_file(name: str, source: str, where: str) -> NamedSchedule:
    raw: dict[str, Any] = strict.read(source, where, {"*": lambda value: value})
    return parse_named(name, raw, where)
