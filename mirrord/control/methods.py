"""The methods of the socket API: access rights and encoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.core.results import Result

#: Part of every address; another number is another protocol.
VERSION = "v1"


class Method(NamedTuple):
    """access: "read" or "act". queued: it transfers, so it waits for its turn among the others.
    ends_runs: it ends what goes on with the mirror, so nothing of that mirror begins meanwhile.
    """

    access: str
    queued: bool = False
    ends_runs: bool = False


METHODS: Mapping[str, Method] = {
    "create": Method("act"),
    "check": Method("read"),
    "initialize": Method("act", queued=True),
    "update": Method("act", queued=True),
    "abort": Method("act", ends_runs=True),
    "quiesce": Method("act"),
    "resume": Method("act"),
    "break_off": Method("act", ends_runs=True),
    "begin_test": Method("act"),
    "end_test": Method("act"),
    "resync": Method("act", queued=True),
    "reverse": Method("act", queued=True),
    "resume_operation": Method("act", queued=True),
    "takeover": Method("act"),
    "adopt": Method("act"),
    "restore_files": Method("act"),
    "restore_all": Method("act", queued=True),
    "release": Method("act"),
    "delete": Method("act"),
    "change_source": Method("act"),
    "throttle": Method("act"),
    "prune": Method("act"),
    "status": Method("read"),
    "history": Method("read"),
    "snapshots": Method("read"),
    "delta": Method("act"),
    "delete_diverged": Method("act"),
    "explain": Method("read"),
    "schedule_next": Method("read"),
    "schedules": Method("read"),
    "alarms": Method("read"),
    "accept_clock": Method("act"),
    "reload": Method("act"),
}


def pack(value: Any) -> dict[str, Any]:
    """A method's result as JSON."""
    if isinstance(value, Result):
        return {"result": {"status": value.status, "text": value.text, "data": dict(value.data)}}
    return {"value": value}


def unpack(packed: Mapping[str, Any]) -> Any:
    """The inverse."""
    if "result" in packed:
        found = packed["result"]
        return Result(found["status"], found["text"], found["data"])
    return packed["value"]


def pack_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON; a relative path is relative to the caller's folder."""
    return {
        key: str(value.absolute()) if isinstance(value, Path) else value
        for key, value in arguments.items()
    }


def unpack_arguments(method: str, packed: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse: only a few arguments are not JSON types."""
    arguments = dict(packed)
    if arguments.get("into") is not None and method == "restore_files":
        arguments["into"] = Path(str(arguments["into"]))
    for key in ("snapshots", "sites", "members"):
        if method == "create" and key in arguments:
            arguments[key] = tuple(arguments[key])
    return arguments
