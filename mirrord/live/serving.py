"""serve, unserve, verify and mode: they concern the end that serves clients.

They wait for no other verb.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress

from mirrord.core.errors import Damaged, LinkLost, MirrordError, Refused, UsageError
from mirrord.core.live import LiveStatus, Mode
from mirrord.core.policies import FIXED
from mirrord.core.results import Result
from mirrord.core.units import format_size, is_port
from mirrord.drivers.live import Live
from mirrord.live.mirror import LiveMirror
from mirrord.policies.registry import check_name
from mirrord.system import clock
from mirrord.system.waiting import LOOK_S

_POLL_S = 0.2
#: Longer than the daemon sets the mode where an end hangs.
_MODE_S = 75.0
#: How long a primary may take to begin a resync that it was told to do.
_RESYNC_S = 30.0
#: A comparison waits so long for an interrupted link.
_OUT_OF_SYNC_S = 60.0


def serve(mirror: LiveMirror, *, socket: str, listen: str, allowed: tuple[str, ...]) -> Result:
    """Let clients connect by NBD; returns when they can."""
    address = _address(socket, listen)
    if allowed and not listen:
        raise UsageError("--allow requires --listen", hint="A unix socket has its permissions.")
    for network in allowed:
        _check_network(network)
    mirror.permit_initialized()
    end = mirror.primary()
    before = end.live_status().served
    other = mirror.destination if end is mirror.source else mirror.source
    with suppress(MirrordError, OSError), other.waiting.hurried(LOOK_S):
        if other.live_status().served:
            other.live_unserve()  # it serves nobody
    where = end.live_serve(address, allowed)
    uri = uri_of(where)
    data = {"address": where, "uri": uri, "end": str(end)}
    if where in before:
        return Result("already_served", f"'{mirror.name}' is served at {uri} already.", data)
    return Result("done", f"'{mirror.name}' ({end}) is served at {uri}", data)


def _address(socket: str, listen: str) -> str:
    if socket and listen:
        raise UsageError("--socket and --listen cannot be combined", hint="Run it once for each.")
    if socket and not socket.startswith("/"):
        raise UsageError(f"--socket '{socket}' is not an absolute path")
    if socket:
        return f"unix:{socket}"
    host, _, port = listen.rpartition(":")
    if listen and not (host and is_port(port) and int(port)):
        raise UsageError(
            f"--listen '{listen}' is not an address and a port",
            hint="Write it as 192.0.2.1:10809 or [2001:db8::1]:10809.",
        )
    return listen


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        hint = "Write it as 192.0.2.7 or 192.0.2.0/24."
        raise UsageError(f"--allow '{text}' is not a network", why=str(error), hint=hint) from None


def uri_of(address: str) -> str:
    """The NBD URI of an address."""
    if address.startswith("unix:"):
        return f"nbd+unix:///?socket={address.removeprefix('unix:')}"
    return f"nbd://{address}"


def unserve(mirror: LiveMirror) -> Result:
    """Disconnect the clients."""
    mirror.permit_initialized()
    found, trouble = list[LiveStatus](), list[MirrordError]()
    for end in (mirror.source, mirror.destination):
        try:
            found.append(mirror.status_of(end))
            if found[-1].served or found[-1].running:  # it may be served where that is not recorded
                end.live_unserve()
        except MirrordError as error:
            trouble.append(error)  # the clients of the other end are disconnected all the same
    if trouble:
        raise trouble[0]
    if not any(status.served for status in found):
        return Result("already_unserved", f"'{mirror.name}' is not served.")
    return Result("done", f"'{mirror.name}' is not served any more; its clients are disconnected.")


def verify(mirror: LiveMirror, *, repair: bool) -> Result:
    """Compare both images while clients write; returns when that is done. repair: copy what
    differs from the primary.
    """
    mirror.permit_initialized()
    end = mirror.primary()
    status = end.live_status()
    if status.mode == Mode.SEMI_SYNC.value and not status.in_sync:
        raise Refused(
            "the images cannot be compared in semi-sync",
            where=f"mirror '{mirror.name}'",
            why="the destination may be behind by the window",
            hint=f"Run 'mirrord mode {mirror.name} sync', compare, and run "
            f"'mirrord mode {mirror.name} {mirror.definition.policy}'.",
        )
    if not status.in_sync:
        reason, way = mirror.out_of_sync(status)
        raise Refused(
            "the images cannot be compared now",
            where=f"mirror '{mirror.name}'",
            why=f"they are out of sync ({reason})",
            hint=f"{way} until 'mirrord status {mirror.name}' says in sync.",
        )
    if status.verify.state != "running":
        end.live_verify(mirror.definition.verify.rate)
    status = _wait_compared(mirror, end)
    found = status.verify
    checked = format_size(found.checked_bytes)
    data = {"checked_bytes": found.checked_bytes, "differing_bytes": found.differing_bytes}
    if found.state != "complete":
        raise LinkLost(
            "the comparison was interrupted",
            where=str(end),
            why=status.problem or found.state,
            hint="Run it again.",
        )
    if found.differing_bytes and repair:
        return _repaired(mirror, end, data)
    if found.differing_bytes:
        first = ", ".join(f"{offset} ({length} bytes)" for offset, length in found.differing[:5])
        error = Damaged(
            f"the images differ in {format_size(found.differing_bytes)}",
            where=f"mirror '{mirror.name}'",
            why=f"of {checked} compared, first at {first}",
            hint="Find out which image is right (docs/live-modes.md, 'Compare the images'). If it "
            f"is {end}: 'mirrord verify {mirror.name} --repair'.",
        )
        error.data = dict(data)
        raise error
    return Result("done", f"Both images of '{mirror.name}' are equal: {checked} compared.", data)


def _wait_compared(mirror: LiveMirror, end: Live) -> LiveStatus:
    """Wait for the end of a comparison. It is ended when it has stood still for too long."""
    seen_s = clock.monotonic_s()
    while (status := end.live_status()).verify.state == "running":
        if status.state == "in-sync":
            seen_s = clock.monotonic_s()
        if clock.monotonic_s() - seen_s > _OUT_OF_SYNC_S:
            with suppress(MirrordError):
                end.live_verify_stop()
            raise LinkLost(
                "the comparison was ended",
                where=f"mirror '{mirror.name}'",
                why=f"the ends have been out of sync for {_OUT_OF_SYNC_S:g} s, or not connected "
                f"({status.reason or status.mode})",
                hint=f"Run it again when 'mirrord status {mirror.name}' says in sync.",
            )
        mirror.waiting.sleep_s(_POLL_S)
    return status


def _repaired(mirror: LiveMirror, end: Live, data: dict[str, int]) -> Result:
    end.live_repair()
    # Until it has left sync: unless clients have overwritten all of it in the meantime.
    mirror.wait(end, "the resync", lambda one: not (one.in_sync and one.dirty_bytes), _RESYNC_S)
    other = mirror.destination if end is mirror.source else mirror.source
    mirror.copy(end, other)
    size = format_size(data["differing_bytes"])
    return Result(
        "repaired",
        f"{size} of {other} differed and were overwritten by those of {end}; both ends are in "
        "sync.",
        data,
    )


def set_mode(mirror: LiveMirror, mode: str) -> Result:
    """Write the policy into the definition, and apply it."""
    check_name(mode)
    with mirror.changing_mode(_MODE_S):
        return _set_mode(mirror, mode)


def _set_mode(mirror: LiveMirror, mode: str) -> Result:
    before = mirror.definition.policy
    mirror.book.definitions.set_policy(mirror.name, mode)
    data = {"mode": mode, "before": before}
    reading = mirror.read()
    if reading.primary is None:
        if any(end and end.volume for end in (reading.source, reading.destination)):
            raise Refused(
                f"the mode {mode} is set in the definition, but is not in force",
                where=f"mirror '{mirror.name}'",
                why="no primary is running",
                hint=f"'mirrord status {mirror.name}' shows both ends; the mode is applied when "
                "one runs.",
            )
        return Result("done", f"The mode of '{mirror.name}' will be {mode}.", data)
    if mode not in FIXED:
        mirror.take_control(mirror.primary())
        text = f"The policy of '{mirror.name}' is {mode} (before: {before}); the daemon applies it."
        return Result("done", text, data)
    mirror.set_mode(mirror.primary(), Mode(mode))
    return Result("done", f"The mode of '{mirror.name}' is {mode} (before: {before}).", data)
