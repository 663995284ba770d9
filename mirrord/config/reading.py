"""Reads a definition: two sites, common settings, and settings per direction.

docs/config.md describes each key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from mirrord.config import live, members, policies, strict
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, UsageError
from mirrord.core.model import (
    Definition,
    Endpoint,
    HookCommands,
    Member,
    Pace,
    Pausing,
    Promise,
    Timing,
    Verifying,
)
from mirrord.core.names import check_mirror_name, check_site_name, did_you_mean
from mirrord.core.pause import PAUSE_MAX_S
from mirrord.core.units import parse_size
from mirrord.core.verification import parse_mode

KEEP_MAX = 10_000
_Group = TypeVar("_Group")
#: The kind of a ZFS endpoint with its descendants.
TREE = "zfs-tree"
#: How many reference snapshots are kept by default.
KEEP_AS_SOURCE = 2
KEEP_AS_DESTINATION = 10


_identity = strict.matching(r"[0-9a-z]{1,32}", "an id is 1 to 32 digits and lower-case letters")


def keep(value: Any) -> int | str:
    """How many snapshots to keep, or retention rules; as given."""
    if isinstance(value, str):
        from mirrord.schedules.retention import parse_keep

        parse_keep(value)
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= KEEP_MAX:
        raise ValueError(
            f"expected an integer from 1 to {KEEP_MAX}, or rules such as "
            '"newest 10, 24 hourly, 7 daily"'
        )
    return value


def as_keep(value: int | str) -> int | str:
    """`keep` for a value that is not from a file: `UsageError` when invalid."""
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value):
        value = int(value)
    try:
        return keep(value)
    except ValueError as error:
        raise UsageError(f"'{value}' is not a retention rule", why=str(error)) from None


def window(value: Any) -> str:
    """The window of semi-sync as given; only validated here."""
    from mirrord.core.units import window_argument

    window_argument(strict.text(value))
    return str(value).strip()


_LINK_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::([0-9]{1,5}))?")


def _link_address(value: Any) -> str:
    found = _LINK_ADDRESS.fullmatch(strict.text(value))
    if found is None:
        raise ValueError("expected ADDRESS or ADDRESS:PORT; an IPv6 address in brackets")
    if found[1] and not 0 < int(found[1]) < 65536:
        raise ValueError("expected a port from 1 to 65535")
    return str(value)


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('expected a list of strings, for example ["daily.*"]')
    return tuple(value)


def rates(value: Any) -> str:
    """Rates as given; only validated here."""
    from mirrord.schedules.rates import parse_rates

    parse_rates(strict.text(value))
    return str(value).strip()


def rate(value: Any) -> int:
    """A single rate in bytes per second."""
    text, found = strict.text(value).strip(), 0
    if text.endswith("/s"):
        with suppress(UsageError):
            found = parse_size(text.removesuffix("/s"))
    if not found:
        raise ValueError('expected a rate, for example "50MiB/s"')
    return found


def as_rates(value: str) -> str:
    """`rates` for a value that is not from a file: `UsageError` when invalid."""
    if not value.strip():
        raise UsageError(
            "the rate is empty", hint="Write for example 20MiB/s, or unlimited for no limit."
        )
    return rates(value)


def _short(value: Any) -> float:
    """A duration of a pause."""
    seconds = strict.duration(value)
    if seconds > PAUSE_MAX_S:
        raise ValueError(
            f"expected at most {PAUSE_MAX_S} s: the application stands still meanwhile"
        )
    return seconds


def _verify_mode(value: Any) -> str:
    parse_mode(strict.text(value))
    return str(value)


_HOOKS: strict.Keys = {
    "before_snapshot": strict.program,
    "after_snapshot": strict.program,
    "before_transfer": strict.program,
    "after_transfer": strict.program,
    "timeout": strict.duration,
}

#: The settings that may depend on the direction.
_SETTINGS: strict.Keys = {
    "schedule": strict.texts,
    "zone": strict.zone,
    "jitter": strict.text,
    "windows": strict.texts,
    "blackouts": strict.texts,
    "rpo": strict.duration,
    "warn_percent": strict.integer(1, 100_000),
    "error_percent": strict.integer(1, 100_000),
    "stall": strict.duration,
    "throttle": rates,
    "borrow": strict.number(1, 100),
    "io_pressure": strict.number(0.1, 100),
    "link": strict.text,
    "prune_share": strict.number(0, 1),
    "retries": strict.integer(0, 1000),
    "checkpoint_days": strict.integer(0, 36500),
    "pause": members.pauser,
    "pause_max": _short,
    "pause_alarm": _short,
    "verify_rate": rate,
    "verify_max_age": strict.duration,
    "verify_updates": strict.boolean,
    "verify_schedule": strict.texts,
    "verify_mode": _verify_mode,
}
_SITE: strict.Keys = {
    "endpoint": lambda value: parse_endpoint(strict.text(value), what="endpoint"),
    "keep": keep,
    "snapshots": _patterns,
    "hooks": _HOOKS,
    "link_address": _link_address,
}
_KEYS: strict.Keys = {
    "id": _identity,
    "recursive": strict.boolean,
    "nested": strict.boolean,
    "policy": policies.policy,
    "window": window,
    "merge_above": policies.size,
    "compress": strict.boolean,
    "ack": policies.ack,
    **_SETTINGS,
    "site": {"*": _SITE},
    "member": members.tables,
    "from": {"*": {**_SETTINGS, "keep": {"*": keep}}},
    **policies.TABLES,
}
_DIRECT = ("window", "merge_above", "compress", "ack", "prune_share", "retries", "checkpoint_days")
_ABOUT_TIMES = ("zone", "jitter", "windows", "blackouts")
#: By the keys of the file, the fields of each group.
_TIMING = {"schedule": "rules", **{key: key for key in _ABOUT_TIMES}}
_PROMISE = {
    "rpo": "rpo_s",
    "warn_percent": "warn",
    "error_percent": "error",
    "stall": "stall_s",
}
_PACE = {key: key for key in ("throttle", "borrow", "io_pressure", "link")}
_VERIFYING = {
    "verify_rate": "rate",
    "verify_max_age": "max_age_s",
    "verify_updates": "updates",
    "verify_schedule": "schedule",
    "verify_mode": "mode",
}
_HOOK_COMMANDS = {**{key: key for key in _HOOKS}, "timeout": "timeout_s"}
#: The older format, without sites.
_OLD_KEYS: strict.Keys = {
    "source": lambda value: parse_endpoint(strict.text(value), what="source"),
    "destination": lambda value: parse_endpoint(strict.text(value), what="destination"),
    "keep_source": keep,
    "keep_destination": keep,
    "snapshots": _patterns,
    "hooks": _HOOKS,
}
OLD_FORM: strict.Keys = {
    "id": _identity,
    "recursive": strict.boolean,
    "policy": policies.policy,
    **_SETTINGS,
    **_OLD_KEYS,
}


def parse(name: str, text: str, file: str, source_site: str = "") -> Definition:
    """The definition in `text`; `ConfigError` with file and line when it is invalid.

    source_site: the site that is the source; "": the first one.
    """
    both = parse_both(name, text, file)
    return both[source_site or next(iter(both))]


@lru_cache(maxsize=1024)
def parse_both(name: str, text: str, file: str) -> Mapping[str, Definition]:
    """The definition for both directions, by source site, in the order of the file; `ConfigError`
    with file and line when one of them is invalid.
    """
    return _Reader(name, text, file).both()


def is_old(raw: Mapping[str, Any]) -> bool:
    """Whether the values of a file have the older format, without sites."""
    return "site" not in raw and ("source" in raw or "destination" in raw)


class _Reader:
    """One file: its text, for line numbers in errors, and its values."""

    def __init__(self, name: str, text: str, file: str) -> None:
        self._name, self._text, self._file = name, text, file
        try:
            check_mirror_name(name)
        except UsageError as error:
            raise ConfigError(error.what, where=file, why=error.why) from error
        raw = strict.loads(text, file)
        self._check_form(raw)
        self._values = strict.read(text, file, _KEYS, raw)
        if "id" not in self._values:
            raise ConfigError("the key 'id' is missing", where=file)
        self._sites: dict[str, dict[str, Any]] = self._values.get("site", {})
        self._overrides: dict[str, dict[str, Any]] = self._values.get("from", {})

    def both(self) -> dict[str, Definition]:
        """See `parse_both`."""
        self._check_sites()
        members.check_tables(self._values, self._file)
        return {site: self._directed(site) for site in self._sites}

    def _where(self, key: str, table: str = "") -> str:
        return f"{self._file}:{strict.line_of(self._text, key, table)}"

    def _check_form(self, raw: Mapping[str, Any]) -> None:
        if is_old(raw):
            raise ConfigError(
                "the definition has the format of an older version",
                where=self._file,
                hint=f"'mirrord config migrate {self._name}' rewrites it.",
            )
        for key in _OLD_KEYS:
            if key in raw and "site" in raw:
                raise ConfigError(
                    f"'{key}' belongs to the older format, but the file has sites",
                    where=self._where(key),
                    hint=f"Remove '{key}': each site has its own settings (docs/config.md).",
                )

    def _check_sites(self) -> None:
        names = list(self._sites)
        if len(names) != 2:
            why = f"it has {', '.join(names)}" if names else "it has none"
            raise ConfigError(
                "a definition needs exactly two sites",
                why=why,
                where=self._where(names[-1], "site") if names else self._file,
                hint="Write a table for each: [site.primary] and [site.secondary].",
            )
        for name in names:
            self._check_site(name)
        for name, override in self._overrides.items():
            self._check_known(name, "from")
            for other in override.get("keep", {}):
                self._check_known(other, f"from.{name}.keep")

    def _check_site(self, name: str) -> None:
        site = self._sites[name]
        try:
            check_site_name(name)
        except UsageError as error:
            where = self._where(name, "site")
            raise ConfigError(error.what, where=where, why=error.why) from None
        if "endpoint" not in site and "member" not in self._values:
            raise ConfigError(
                f"the key 'endpoint' of the site '{name}' is missing",
                where=self._where("endpoint", f"site.{name}"),
            )
        if self._values.get("recursive") and "endpoint" in site:
            where = self._where("endpoint", f"site.{name}")
            site["endpoint"] = recursive_end(site["endpoint"], where)
        if self._values.get("nested") and "endpoint" in site:
            where = self._where("endpoint", f"site.{name}")
            site["endpoint"] = members.nested_end(site["endpoint"], where)
            if site.get("snapshots"):
                raise ConfigError(
                    "'snapshots' cannot be combined with 'nested'",
                    where=self._where("snapshots", f"site.{name}"),
                    why="a user snapshot is of one subvolume; remove one of the keys",
                )

    def _check_known(self, name: str, table: str) -> None:
        if name in self._sites:
            return
        raise ConfigError(
            f"'{table}.{name}' is not a site",
            where=self._where(name, table),
            hint=did_you_mean(name, self._sites, f"Sites: {', '.join(self._sites)}."),
        )

    def _directed(self, source: str) -> Definition:
        first, second = self._sites
        destination = second if source == first else first
        override = self._overrides.get(source, {})
        values = {**self._values, **override}
        if override.get("schedule") == ():  # drops all of the common schedule
            dropped = {*_ABOUT_TIMES} - override.keys()
            values = {key: value for key, value in values.items() if key not in dropped}
        kept = {
            **{name: site["keep"] for name, site in self._sites.items() if "keep" in site},
            **override.get("keep", {}),
        }
        found = tuple(
            Member(name, ends[source], ends[destination], pause)
            for name, ends, pause in values.get("member", ())
        )
        ends = (
            (found[0].source, found[0].destination)
            if found
            else (self._sites[source]["endpoint"], self._sites[destination]["endpoint"])
        )
        definition = Definition(
            name=self._name,
            id=values["id"],
            source=ends[0],
            destination=ends[1],
            members=found,
            link_addresses=(
                self._sites[first].get("link_address", ""),
                self._sites[second].get("link_address", ""),
            ),
            policy=values.get("policy", "async"),
            policy_keys=policies.keys_of(values, self._where),
            keep_source=kept.get(source, KEEP_AS_SOURCE),
            keep_destination=kept.get(destination, KEEP_AS_DESTINATION),
            snapshots=self._sites[source].get("snapshots", ()),
            file=self._file,
            timing=_group(Timing, _TIMING, values),
            promise=_group(Promise, _PROMISE, values),
            pace=_group(Pace, _PACE, values),
            verify=_group(Verifying, _VERIFYING, values),
            hooks=_group(HookCommands, _HOOK_COMMANDS, self._sites[source].get("hooks", {})),
            pausing=_pausing(values),
            site_names=(first, second),
            source_site=source,
            **{key: values[key] for key in _DIRECT if key in values},
        )
        self._check_directed(definition)
        return definition

    def _has_pause(self) -> bool:
        """Whether there is one in any direction, or of any member."""
        of_members = (pause for _name, _ends, pause in self._values.get("member", ()))
        tables = (self._values, *self._overrides.values())
        return any(of_members) or any("pause" in table for table in tables)

    def _check_directed(self, definition: Definition) -> None:
        """Check what may be invalid for one direction only."""
        promise, timing = definition.promise, definition.timing
        override = self._overrides.get(definition.source_site, {})

        def where(key: str) -> str:
            return self._where(key, f"from.{definition.source_site}" if key in override else "")

        live.check(definition, where)
        if promise.error < promise.warn:
            raise ConfigError(
                "'error_percent' is below 'warn_percent'",
                where=where("error_percent"),
                why=f"{promise.error} < {promise.warn}",
            )
        for key in ("pause_max", "pause_alarm"):
            if key in {**self._values, **override} and not self._has_pause():
                raise ConfigError(
                    f"'{key}' requires a pause",
                    where=where(key),
                    hint='Add for example: pause = "cgroup:postgresql.service"',
                )
        if definition.verify.schedule:
            _check_schedule(definition.verification_timing, where("verify_schedule"))
        if timing.rules:
            _check_schedule(timing, where("schedule"))
        elif any(timing):
            key = next(key for key in _ABOUT_TIMES if getattr(timing, key))
            raise ConfigError(
                f"'{key}' requires a schedule",
                where=where(key),
                hint='Add for example: schedule = "every 15m"',
            )


def recursive_end(endpoint: Endpoint, where: str) -> Endpoint:
    """The endpoint with its descendants; `ConfigError` for kinds without descendants."""
    if endpoint.kind not in ("zfs", TREE):
        raise ConfigError(
            f"a {endpoint.kind} volume cannot be mirrored recursively",
            where=where,
            hint="'recursive' is for ZFS datasets. Create a mirror for each volume.",
        )
    return endpoint._replace(kind=TREE)


def _group(
    kind: Callable[..., _Group], fields: Mapping[str, str], values: Mapping[str, Any]
) -> _Group:
    """A group of settings; one that is not in the file has its default. fields: by key."""
    return kind(**{field: values[key] for key, field in fields.items() if key in values})


def _pausing(values: dict[str, Any]) -> Pausing:
    max_s = values.get("pause_max", Pausing().max_s)
    return Pausing(values.get("pause", ""), max_s, values.get("pause_alarm", max_s / 2))


def _check_schedule(timing: Timing, where: str) -> None:
    """Validate a schedule as far as possible without resolving named ones."""
    if len(timing.rules) == 1 and is_name(timing.rules[0]):
        return  # a named schedule: mirrord.config.schedules looks it up
    from mirrord.schedules.schedule import parse_schedule

    try:
        parse_schedule(
            timing.rules,
            zone=timing.zone or "UTC",
            jitter=timing.jitter,
            windows=timing.windows,
            blackouts=timing.blackouts,
        )
    except UsageError as error:
        raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None


def is_name(rule: str) -> bool:
    """Whether a rule is the name of a named schedule rather than a rule itself."""
    return re.fullmatch(r"[a-z][a-z0-9_-]*", rule) is not None
