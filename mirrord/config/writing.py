"""Writes definitions: new ones as text, and changes that preserve comments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mirrord.config import members, policies
from mirrord.config.reading import TREE
from mirrord.core.errors import ConfigError
from mirrord.core.model import Definition, Endpoint
from mirrord.core.policies import WRITTEN
from mirrord.core.units import MERGE_ABOVE

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def quoted(text: object) -> str:
    """A string as a TOML value, with any necessary escapes."""
    plain = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", plain) + '"'


def _value(item: object) -> str:
    if isinstance(item, tuple):
        return "[" + ", ".join(quoted(one) for one in item) + "]"
    return quoted(item) if isinstance(item, str) else str(item)


def as_written(endpoint: Endpoint, *, recursive: bool = False, nested: bool = False) -> str:
    """An endpoint as in a definition, where `recursive` and `nested` are separate keys."""
    if recursive and endpoint.kind == TREE:
        return str(endpoint._replace(kind="zfs"))
    return str(
        endpoint._replace(kind="btrfs") if nested and endpoint.kind == members.NESTED else endpoint
    )


def render(definition: Definition) -> str:
    """The text of a definition's file. Hooks and overrides are added by hand."""
    recursive = definition.source.kind == definition.destination.kind == TREE
    merge_above = definition.merge_above
    nested = definition.source.kind == definition.destination.kind == members.NESTED
    lines = [
        f"# The mirror '{definition.name}'. Keys: docs/config.md. "
        "Check it with 'mirrord config check'.",
        f"id = {quoted(definition.id)}",
        *(["# Includes all descendant datasets.", "recursive = true"] if recursive else []),
        *(["# Includes writable nested subvolumes.", "nested = true"] if nested else []),
        *(["# When writes are acknowledged (docs/live-modes.md)."] if definition.is_live else []),
        f"policy = {quoted(definition.policy)}",
        *([f"window = {quoted(definition.window)}"] if definition.window else []),
        *([f'merge_above = "{merge_above}"'] if merge_above != MERGE_ABOVE else []),
        *([] if definition.compress else ["compress = false"]),
        *([f"ack = {quoted(definition.ack)}"] if definition.ack != WRITTEN else []),
        "",
    ]
    timing, pace = definition.timing, definition.pace
    if timing.rules:
        lines.append("# When updates run (docs/schedules.md).")
        rules = timing.rules[0] if len(timing.rules) == 1 else timing.rules
        lines.append(f"schedule = {_value(rules)}")
        lines += [
            f"{key} = {_value(found)}"
            for key in ("zone", "jitter", "windows", "blackouts")
            if (found := getattr(timing, key))
        ]
        lines.append("")
    if definition.promise.rpo_s is not None:
        lines += [
            "# The recovery point objective: lag alarms are based on it.",
            f'rpo = "{definition.promise.rpo_s:.9f}'.rstrip("0").rstrip(".") + 's"',
            "",
        ]
    if definition.pausing.pauser:
        lines += [
            "# What is paused while snapshots are taken (docs/consistency-groups.md).",
            f"pause = {quoted(definition.pausing.pauser)}",
            "",
        ]
    if pace.throttle:
        lines += ["# The transfer rate limit.", f"throttle = {quoted(pace.throttle)}", ""]
    for site in definition.sites:
        is_source = site.name == definition.source_site
        keep = definition.keep_source if is_source else definition.keep_destination
        end = as_written(site.endpoints[0], recursive=recursive, nested=nested)
        lines += [
            f"[site.{site.name}]"
            + ("  # the source, until 'mirrord reverse' changes the roles" if is_source else ""),
            *([] if definition.members else [f"endpoint = {quoted(end)}"]),
        ]
        if definition.is_live:
            lines.append("")
            continue
        lines += [
            "# The reference snapshots to keep here (the base is always kept).",
            f"keep = {_value(keep)}",
        ]
        if is_source:
            lines += [
                "# User snapshots to replicate while it is the source: glob patterns.",
                f"snapshots = {_value(definition.snapshots)}",
            ]
        lines.append("")
    lines += policies.written(definition.policy_keys)
    lines += members.rendered(definition, quoted)
    return "\n".join(lines)


def with_throttle(text: str, source_site: str, rates: str) -> str:
    """The text of a definition with new rates for the current direction; "": unlimited."""
    document = _document(text)
    override: Any = document.get("from", {}).get(source_site, {})
    if "throttle" in override:
        override["throttle"] = rates or "unlimited"
    elif rates:
        document["throttle"] = rates
    else:
        document.pop("throttle", None)
    return document.as_string()


def with_policy(text: str, policy: str) -> str:
    """The text of a definition with another policy."""
    document = _document(text)
    document["policy"] = policy
    return document.as_string()


def with_endpoint(text: str, site: str, endpoint: Endpoint) -> str:
    """The text of a definition with a new endpoint of a site."""
    document = _document(text)
    recursive, nested = (bool(document.get(key, False)) for key in ("recursive", "nested"))
    sites: Any = document["site"]
    sites[site]["endpoint"] = as_written(endpoint, recursive=recursive, nested=nested)
    return document.as_string()


def _document(text: str) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError("the definition cannot be changed", why=str(error)) from None
