"""Mirror definitions in `mirrors.d/NAME.toml`: read strictly, written so that people like them.

Strict: an unknown key is an error that names the file, the line and the nearest known key.
docs/config.md describes each key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mirrord.config import members, strict
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import ConfigError, MirrordError, NotFound, Refused, UsageError
from mirrord.core.model import Definition, Endpoint, HookCommands, Pace, Promise, Timing
from mirrord.core.names import check_mirror_name, nearest
from mirrord.system import files

KEEP_MAX = 10_000
#: The kind of a ZFS endpoint that is meant with all below it.
TREE = "zfs-tree"


def _identity(value: Any) -> str:
    if not re.fullmatch(r"[0-9a-z]{1,32}", strict.text(value)):
        raise ValueError("an id is 1 to 32 digits and lower-case letters")
    return str(value)


def keep(value: Any) -> int | str:
    """How many snapshots stay, or rules that say which; as it was written."""
    if isinstance(value, str):
        from mirrord.schedules.retention import parse_keep

        parse_keep(value)
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= KEEP_MAX:
        raise ValueError(
            f"a whole number from 1 to {KEEP_MAX} is needed, or rules such as "
            '"newest 10, 24 hourly, 7 daily"'
        )
    return value


def as_keep(value: int | str) -> int | str:
    """`keep` for who has no file: `UsageError` when it is wrong."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    try:
        return keep(value)
    except ValueError as error:
        raise UsageError(f"'{value}' does not say which snapshots stay", why=str(error)) from None


def _policy(value: Any) -> str:
    if value != "async":
        raise ValueError('the only policy of this version is "async"')
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError('a list of texts is needed, for example ["daily.*"]')
    return tuple(value)


def rates(value: Any) -> str:
    """Rates as they are written; only checked here."""
    from mirrord.schedules.rates import parse_rates

    parse_rates(strict.text(value))
    return str(value).strip()


def as_rates(value: str) -> str:
    """`rates` for who has no file: `UsageError` when it is wrong."""
    if not value.strip():
        raise UsageError(
            "the rate is empty", hint="Write for example 20MiB/s, or unlimited for no limit."
        )
    return rates(value)


_HOOKS: strict.Keys = {
    "before_snapshot": strict.program,
    "after_snapshot": strict.program,
    "before_transfer": strict.program,
    "after_transfer": strict.program,
    "timeout": strict.duration,
}

_KEYS: strict.Keys = {
    "id": _identity,
    "source": lambda value: parse_endpoint(strict.text(value), what="source"),
    "destination": lambda value: parse_endpoint(strict.text(value), what="destination"),
    "member": members.tables,
    "recursive": _flag,
    "policy": _policy,
    "keep_source": keep,
    "keep_destination": keep,
    "snapshots": _patterns,
    "schedule": strict.texts,
    "zone": strict.text,
    "jitter": strict.text,
    "windows": strict.texts,
    "blackouts": strict.texts,
    "rpo": strict.duration,
    "warn_percent": strict.whole(1, 100_000),
    "error_percent": strict.whole(1, 100_000),
    "stall": strict.duration,
    "throttle": rates,
    "borrow": strict.number(1, 100),
    "io_pressure": strict.number(0.1, 100),
    "link": strict.text,
    "prune_share": strict.number(0, 1),
    "retries": strict.whole(0, 1000),
    "checkpoint_days": strict.whole(0, 36500),
    "hooks": _HOOKS,
}
_REQUIRED = ("id", "source", "destination")
_DIRECT = (
    "id", "source", "destination", "policy", "keep_source", "keep_destination", "snapshots",
    "prune_share", "retries", "checkpoint_days", "members",
)  # fmt: skip


def parse(name: str, text: str, file: str) -> Definition:
    """The definition in `text`; `ConfigError` with file and line when it is not one."""
    try:
        check_mirror_name(name)
    except MirrordError as error:
        raise ConfigError(error.what, where=file, why=error.why) from error
    values = strict.read(text, file, _KEYS)
    members.spread(values, file)
    for key in _REQUIRED:
        if key not in values:
            raise ConfigError(f"the key '{key}' is missing", where=file)
    if values.get("recursive"):
        for key in ("source", "destination"):
            values[key] = recursive_end(values[key], f"{file}:{strict.line_of(text, key)}")
    definition = Definition(
        name=name,
        file=file,
        timing=_timing(values),
        promise=_promise(values, text, file),
        pace=Pace(
            values.get("throttle", ""), values.get("borrow", 1.0),
            values.get("io_pressure"), values.get("link", ""),
        ),
        hooks=_hooks(values.get("hooks", {})),
        **{key: values[key] for key in _DIRECT if key in values},
    )  # fmt: skip
    if any(definition.timing):
        _check_timing(definition.timing, text, file)
    return definition


def recursive_end(endpoint: Endpoint, where: str) -> Endpoint:
    """The same place with all below it; `ConfigError` where there is no such thing."""
    if endpoint.kind not in ("zfs", TREE):
        raise ConfigError(
            f"a {endpoint.kind} volume cannot be mirrored with all below it", where=where,
            hint="'recursive' is for ZFS datasets. Make a mirror for each volume.",
        )  # fmt: skip
    return endpoint._replace(kind=TREE)


def _timing(values: dict[str, Any]) -> Timing:
    return Timing(
        rules=values.get("schedule", ()),
        zone=values.get("zone", ""),
        jitter=values.get("jitter", ""),
        windows=values.get("windows", ()),
        blackouts=values.get("blackouts", ()),
    )


def _promise(values: dict[str, Any], text: str, file: str) -> Promise:
    usual = Promise()
    made = Promise(
        values.get("rpo"),
        values.get("warn_percent", usual.warn),
        values.get("error_percent", usual.error),
        values.get("stall", usual.stall_s),
    )
    if made.error < made.warn:
        raise ConfigError(
            "'error_percent' is below 'warn_percent'",
            where=f"{file}:{strict.line_of(text, 'error_percent')}",
            why=f"{made.error} < {made.warn}",
        )
    return made


def _hooks(values: dict[str, Any]) -> HookCommands:
    timeout_s = values.pop("timeout", HookCommands().timeout_s)
    return HookCommands(**values, timeout_s=timeout_s)


def _check_timing(timing: Timing, text: str, file: str) -> None:
    """What can be known of a schedule without the named ones must be right."""
    where = f"{file}:{strict.line_of(text, 'schedule')}"
    if not timing.rules:
        key = next(k for k in ("zone", "jitter", "windows", "blackouts") if getattr(timing, k))
        raise ConfigError(
            f"'{key}' says when to run, but there is no schedule",
            where=f"{file}:{strict.line_of(text, key)}",
            hint='Add for example: schedule = "every 15m"',
        )
    if len(timing.rules) == 1 and is_name(timing.rules[0]):
        return  # a named schedule: mirrord.config.schedules looks it up
    from mirrord.schedules.schedule import parse_schedule

    try:
        parse_schedule(
            timing.rules, zone=timing.zone or "UTC", jitter=timing.jitter,
            windows=timing.windows, blackouts=timing.blackouts,
        )  # fmt: skip
    except MirrordError as error:
        raise ConfigError(error.what, where=where, why=error.why, hint=error.hint) from None


def is_name(rule: str) -> bool:
    """Whether a rule is the name of a named schedule rather than a rule itself."""
    return re.fullmatch(r"[a-z][a-z0-9_-]*", rule) is not None


def quoted(text: object) -> str:
    """A text as a TOML value, whatever is in it."""
    plain = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", plain) + '"'


def render(definition: Definition) -> str:
    """A definition as its file's text. Hooks are for people to add: they are not rendered."""

    def value(item: object) -> str:
        if isinstance(item, tuple):
            return "[" + ", ".join(quoted(one) for one in item) + "]"
        return quoted(item) if isinstance(item, str) else str(item)

    tree = definition.source.kind == definition.destination.kind == TREE
    source, destination = (
        end._replace(kind="zfs") if tree else end
        for end in (definition.source, definition.destination)
    )
    lines = [
        f"# The mirror '{definition.name}'. Each key: docs/config.md. "
        "Check it with 'mirrord config check'.",
        f"id = {quoted(definition.id)}",
        *([] if definition.members else [f"source = {quoted(source)}"]),
        *([] if definition.members else [f"destination = {quoted(destination)}"]),
        *(["# With all datasets below.", "recursive = true"] if tree else []),
        f"policy = {quoted(definition.policy)}",
        "",
    ]
    timing, pace = definition.timing, definition.pace
    if timing.rules:
        lines.append("# When updates run (docs/schedules.md).")
        rules = timing.rules[0] if len(timing.rules) == 1 else timing.rules
        lines.append(f"schedule = {value(rules)}")
        for key in ("zone", "jitter", "windows", "blackouts"):
            if found := getattr(timing, key):
                lines.append(f"{key} = {value(found)}")
        lines.append("")
    if definition.promise.rpo_s is not None:
        lines += [
            "# The lag that is promised: alarms are measured by it.",
            f'rpo = "{definition.promise.rpo_s:.9f}'.rstrip("0").rstrip(".") + 's"',
            "",
        ]
    if pace.throttle:
        lines += ["# How fast it may transfer.", f"throttle = {quoted(pace.throttle)}", ""]
    lines += [
        "# Which reference snapshots stay at each end (the base is always one of them).",
        f"keep_source = {value(definition.keep_source)}",
        f"keep_destination = {value(definition.keep_destination)}",
        "",
        "# The source's own snapshots that go along: glob patterns of their names.",
        f"snapshots = {value(definition.snapshots)}",
        *members.rendered(definition.members, quoted),
    ]
    return "\n".join(lines) + "\n"


class Definitions:
    """The folder of definitions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where the definition of a mirror lies, or would lie."""
        return self.folder / f"{check_mirror_name(name)}.toml"

    def names(self) -> list[str]:
        """All that are there, whether right or wrong."""
        # Not what editors put beside a file while it is edited, such as '.#home.toml'.
        found = self.folder.glob("*.toml")
        return sorted(path.stem for path in found if not path.name.startswith("."))

    def load(self, name: str) -> Definition:
        """One by its name; `NotFound` with the nearest name when there is none."""
        path = self.file(name)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if path.is_symlink():
                raise ConfigError(
                    "the definition cannot be read", where=str(path),
                    why=f"it is a link to {path.readlink()}, which is not there",
                ) from None  # fmt: skip
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
        found = [self.load_listed(name) for name in self.names()]
        check_together(found)
        return found

    def load_listed(self, name: str) -> Definition:
        """One of `names`: a file that nobody could ask for by its name is wrong itself."""
        try:
            return self.load(name)
        except UsageError as error:
            file = self.folder / f"{name}.toml"
            raise ConfigError(
                error.what, where=str(file), hint="Rename the file, or move it elsewhere."
            ) from None

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
        text = render(definition)
        parse(definition.name, text, str(path))  # what cannot be read back would stop all mirrors
        files.write_atomic("CREATE:DEFINITION", path, text.encode())
        return definition._replace(file=str(path))

    def swap(self, name: str, source: Endpoint, destination: Endpoint) -> Definition:
        """Set source and destination, keeping every other line and comment as it is."""
        return self._write_ends(name, [source], [destination])

    def reverse(self, name: str) -> Definition:
        """Swap source and destination of each member, keeping every other line as it is."""
        return self._write_ends(name, *self._turned(name))

    def reversed(self, name: str) -> Definition:
        """What `reverse` will write; `ConfigError` when it cannot be written."""
        return self._with_ends(name, *self._turned(name))[0]

    def _turned(self, name: str) -> tuple[list[Endpoint], list[Endpoint]]:
        sources, destinations = members.ends_of(self.load(name).pairs)
        return destinations, sources

    def _write_ends(self, name: str, *ends: list[Endpoint]) -> Definition:
        definition, text = self._with_ends(name, *ends)
        files.write_atomic("REVERSE:DEFINITION", self.file(name), text.encode())
        return definition

    def _with_ends(self, name: str, *ends: list[Endpoint]) -> tuple[Definition, str]:
        path = self.file(name)
        text = path.read_text(encoding="utf-8")
        tree = re.search(r"(?m)^\s*recursive\s*=\s*true", text) is not None
        for key, found in zip(("source", "destination"), ends, strict=True):
            plain = (
                end._replace(kind="zfs") if tree and end.kind == TREE else end for end in found
            )
            text = members.set_ends(text, key, [quoted(end) for end in plain], str(path))
        return parse(name, text, str(path)), text

    def set_throttle(self, name: str, rates_text: str) -> Definition:
        """Set or (with "") remove the rates, keeping every other line and comment as it is."""
        path = self.file(name)
        self.load(name)
        lines = path.read_text(encoding="utf-8").splitlines()
        top = next((n for n, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
        kept = [line for line in lines[:top] if not re.match(r"\s*throttle\s*=", line)]
        if rates_text:
            place = next(
                (n for n, line in enumerate(lines[:top]) if re.match(r"\s*throttle\s*=", line)),
                len(kept),
            )
            kept.insert(place, f"throttle = {quoted(rates_text)}")
        text = "\n".join([*kept, *lines[top:]]) + "\n"
        definition = parse(name, text, str(path))
        files.write_atomic("THROTTLE:DEFINITION", path, text.encode())
        return definition

    def remove(self, name: str) -> None:
        """Remove a definition, if it is there."""
        files.remove_file("DELETE:DEFINITION", self.file(name))


def check_together(definitions: list[Definition]) -> None:
    """`ConfigError` when two definitions cannot both be meant."""
    by_destination: dict[str, Definition] = {}
    by_id: dict[str, Definition] = {}
    for definition in definitions:
        for pair in definition.pairs:
            ends = definition._replace(source=pair.source, destination=pair.destination)
            _check_ends(ends)
            # A dataset is the same place with and without what is below it.
            end = str(pair.destination).replace(f"{TREE}:", "zfs:", 1)
            other = by_destination.setdefault(end, definition)
            if other is not definition:
                raise ConfigError(
                    f"the mirrors '{other.name}' and '{definition.name}' have one destination",
                    where=definition.file or definition.name,
                    why=str(pair.destination),
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
    members.check(definitions)


def _check_ends(definition: Definition) -> None:
    source, destination = definition.source, definition.destination
    where = definition.file or definition.name
    if {source.kind, destination.kind} == {"zfs", TREE}:
        raise ConfigError(
            "only one end is meant with all below it", where=where,
            hint="Write both as zfs: and add 'recursive = true' (create: '--recursive').",
        )  # fmt: skip
    if source.kind != destination.kind:
        raise members.mixed(source, destination, where)
    if source == destination:
        raise ConfigError("source and destination are the same", where=where, why=str(source))
    if source.host != destination.host:
        return
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
