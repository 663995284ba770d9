"""Settings of live mirrors, and of mirrors that are none."""

from __future__ import annotations

from collections.abc import Callable

from mirrord.core.errors import ConfigError
from mirrord.core.model import Definition, HookCommands
from mirrord.core.policies import WRITTEN, PolicyKeys
from mirrord.core.units import MERGE_ABOVE


def check(definition: Definition, where_of: Callable[[str], str]) -> None:
    """`ConfigError` when a setting does not fit the kind of the volumes. where_of: file and line of
    a key.
    """
    kind = definition.source.kind
    if not definition.is_live and definition.policy != "async":
        raise ConfigError(
            f"the policy '{definition.policy}' is for images",
            where=where_of("policy"),
            why=f"the ends are {kind} volumes, which are mirrored by snapshots",
            hint="Write image:/PATH for a file, a zvol or another block device.",
        )
    if not definition.is_live and definition.policy_keys != PolicyKeys():
        keys = definition.policy_keys._asdict()
        table = next(name for name, found in keys.items() if found)
        raise ConfigError(
            "the keys of a policy are for images",
            where=where_of("policy_options" if table == "options" else table),
        )
    if not definition.is_live and definition.window:
        raise ConfigError(
            "'window' is for images",
            where=where_of("window"),
            why="it limits how far the replica may be behind in semi-sync",
        )
    for key, usual in (("merge_above", MERGE_ABOVE), ("compress", True), ("ack", WRITTEN)):
        if not definition.is_live and getattr(definition, key) != usual:
            raise ConfigError(
                f"'{key}' is for images",
                where=where_of(key),
                why="it is about writes that are sent one by one",
            )
    if not definition.is_live:
        return
    unfit = {
        "member": definition.members,
        "schedule": definition.timing.rules,
        "snapshots": definition.snapshots,
        "hooks": definition.hooks != HookCommands(),
        "verify_updates": definition.verify.updates,
        "verify_schedule": definition.verify.schedule,
    }
    for key, value in unfit.items():
        if value:
            raise ConfigError(
                f"'{key}' is not possible for images",
                where=where_of(key),
                why="each write is mirrored, there are no snapshots and no updates",
            )
