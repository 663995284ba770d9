"""What a definition says of the policy of a live mirror, beside its name."""

from typing import TYPE_CHECKING, NamedTuple

from mirrord.core.live import Mode

if TYPE_CHECKING:
    from mirrord.core.dynamickeys import DynamicKeys

DYNAMIC = "dynamic"
SCHEDULED = "scheduled"
#: Where a write is when it is answered in sync: at both ends, in memory or on disk.
WRITTEN, DURABLE = "written", "durable"
#: The policies that are always in one mode.
FIXED = tuple(mode.value for mode in Mode)
#: All that need no other package.
POLICY_NAMES = (*FIXED, DYNAMIC, SCHEDULED)


class ScheduledKeys(NamedTuple):
    """The keys of the policy `scheduled`. hours: spans of the week. inside, outside: the names of
    the policies in these hours and otherwise.
    """

    hours: tuple[str, ...]
    inside: str
    outside: str


class PolicyKeys(NamedTuple):
    """What the policies of a definition are made with. options: of a policy from another package,
    by name.
    """

    dynamic: "DynamicKeys | None" = None
    scheduled: ScheduledKeys | None = None
    options: tuple[tuple[str, str], ...] = ()
