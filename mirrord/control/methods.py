"""The methods of the socket API: access rights and encoding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.core.records import AlarmRecord
from mirrord.core.reports import DeltaReport, History, NamedSchedule, NextRuns, SnapshotTable
from mirrord.core.results import Result
from mirrord.core.status import MirrorStatus
from mirrord.wire import values

#: Part of every address; another number is another protocol.
VERSION = "v1"


class Method(NamedTuple):
    """access: "read" or "act". queued: it transfers, so it waits for its turn among the others.
    ends_runs: it ends what goes on with the mirror, so nothing of that mirror begins meanwhile.
    returns: the type of its result.
    """

    access: str
    queued: bool = False
    ends_runs: bool = False
    returns: Any = Result


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
    "status": Method("read", returns=list[MirrorStatus]),
    "history": Method("read", returns=History),
    "snapshots": Method("read", returns=SnapshotTable),
    "delta": Method("act", returns=DeltaReport),
    "delete_diverged": Method("act"),
    "explain": Method("read"),
    "schedule_next": Method("read", returns=NextRuns),
    "schedules": Method("read", returns=list[NamedSchedule]),
    "alarms": Method("read", returns=list[AlarmRecord]),
    "accept_clock": Method("act"),
    "reload": Method("act"),
}


def pack(value: Any) -> dict[str, Any]:
    """A method's result as JSON."""
    if isinstance(value, Result):
        return {"result": {"status": value.status, "text": value.text, "data": dict(value.data)}}
    return {"value": values.pack(value)}


def unpack(method: str, packed: Mapping[str, Any]) -> Any:
    """The inverse."""
    if "result" in packed:
        found = packed["result"]
        return Result(found["status"], found["text"], found["data"])
    return values.unpack(METHODS[method].returns, packed["value"])


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
