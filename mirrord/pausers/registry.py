"""The kinds of pausers: those of mirrord, and those that other packages add by an entry point."""

from __future__ import annotations

from collections.abc import Callable

from mirrord.core.errors import UsageError
from mirrord.core.names import did_you_mean
from mirrord.pausers.cgroup import CgroupPauser
from mirrord.pausers.contract import Pauser
from mirrord.pausers.fsfreeze import FsfreezePauser
from mirrord.pausers.hook import HookPauser
from mirrord.pausers.live import LivePauser
from mirrord.pausers.qmp import QmpPauser

#: No pause.
NONE = "none"
GROUP = "mirrord.pausers"
_KINDS: dict[str, Callable[[str, str], Pauser]] = {
    "cgroup": CgroupPauser,
    "hook": HookPauser,
    "fsfreeze": FsfreezePauser,
    "qmp": QmpPauser,
    "live": LivePauser,
}


def open_pauser(text: str) -> Pauser:
    """The pauser that `KIND:ARGUMENT` names; `UsageError` when it is malformed."""
    kind, _, argument = text.partition(":")
    make = _KINDS.get(kind) or _added(kind)
    if make is None:
        known = ", ".join((NONE, *_KINDS))
        raise UsageError(
            f"'{kind}' is not a kind of pause",
            hint=did_you_mean(kind, (NONE, *_KINDS), f"Write KIND:ARGUMENT; kinds: {known}."),
        )
    try:
        return make(kind, argument)
    except ValueError as error:
        raise UsageError(f"'{text}' is not a valid pause", why=str(error)) from None


def checked(text: str) -> str:
    """The same text, if it names a pauser or is `none`."""
    if text != NONE:
        open_pauser(text)
    return text


def pauser_of(text: str) -> str:
    """The pauser that a rule for a peer names, by `KIND:ARGUMENT` or by a systemd unit."""
    text = text if ":" in text else f"cgroup:{text}"
    open_pauser(text)
    return text


def _added(kind: str) -> Callable[[str, str], Pauser] | None:
    """A kind of another package."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for one in entry_points(group=GROUP, name=kind):
        made: Callable[[str, str], Pauser] = one.load()
        return made
    return None
