"""The policies by name: those of mirrord, and those that other packages add by an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirrord.core.errors import UsageError
from mirrord.core.live import Mode
from mirrord.core.names import did_you_mean
from mirrord.core.policies import DYNAMIC, FIXED, POLICY_NAMES, SCHEDULED, PolicyKeys
from mirrord.core.units import WINDOW, parse_size
from mirrord.policies.dynamic import Dynamic
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import AnyPolicy
from mirrord.policies.scheduled import Scheduled
from mirrord.schedules.spans import parse_span

GROUP = "mirrord.policies"

#: What an entry point names: it makes a policy of the options in the definition.
Maker = Callable[[Mapping[str, str]], AnyPolicy]


def check_name(name: str) -> str:
    """The same name, if there is a policy of that name; `UsageError` otherwise."""
    if name not in POLICY_NAMES and not _added(name):
        hint = did_you_mean(name, POLICY_NAMES, f"Policies: {', '.join(POLICY_NAMES)}.")
        raise UsageError(f"'{name}' is not a mode or policy", hint=hint)
    return name


def open_policy(name: str, keys: PolicyKeys, *, window: str = "", zone: str = "UTC") -> AnyPolicy:
    """The policy of that name. window: of semi-sync, a size. zone: of the hours of `scheduled`."""
    if name == Mode.SEMI_SYNC.value:
        return Fixed(Mode.SEMI_SYNC, parse_size(window or WINDOW))
    if name in FIXED:
        return Fixed(Mode(name))
    if name == DYNAMIC and keys.dynamic is not None:
        return Dynamic(keys.dynamic)
    if name == SCHEDULED and keys.scheduled is not None:
        inside, outside = (
            open_policy(each, keys, window=window, zone=zone)
            for each in (keys.scheduled.inside, keys.scheduled.outside)
        )
        spans = tuple(map(parse_span, keys.scheduled.hours))
        return Scheduled(spans, inside, outside, zone)
    for one in _added(name):
        make: Maker = one.load()
        return make(dict(keys.options))
    raise UsageError(
        f"the policy '{name}' cannot be used", why="its keys or its package are missing"
    )


def _added(name: str) -> tuple[Any, ...]:
    """The entry points of that name."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    return tuple(entry_points(group=GROUP, name=name))
