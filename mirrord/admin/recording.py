"""Recording a live volume or device into a trace: `mirrord trace record`.

Takes texts, returns plain values, raises only `MirrordError`. Needs numpy and pyarrow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.config.hosts import Hosts
from mirrord.core.endpoint import parse_endpoint
from mirrord.core.errors import Aborted, MirrordError, UsageError
from mirrord.core.model import Role, VolumeFacts
from mirrord.drivers.contract import Capability, Driver
from mirrord.drivers.refusals import not_live
from mirrord.drivers.registry import open_driver
from mirrord.engine.recording import Pace, Recorded, Recorder
from mirrord.engine.recording_journal import Journal, clean_up, journal
from mirrord.link.links import Links
from mirrord.system import paths
from mirrord.system.explain import explained
from mirrord.traces import kernel
from mirrord.traces.kernel import KernelRecorder, Seen
from mirrord.traces.model import Facts
from mirrord.traces.store import TraceWriter, beside

#: Below this a snapshot of a file system takes longer than what lies between two.
INTERVAL_MIN_S = 0.5
#: How long a signal may go unnoticed.
_SIGNAL_S = 1.0

#: Called with numbers of what was recorded so far.
Tell = Callable[[dict[str, Any]], None]


class Wanted(NamedTuple):
    """out: the trace's file, replaced when the recording ends. interval_s: between snapshots, None
    for a device. duration_s: until it ends by itself. name: the trace's, "" for what is recorded.
    files: look at the changed files, too: what a mirror of whole files would transfer.
    """

    out: Path
    interval_s: float | None
    duration_s: float | None
    name: str = ""
    files: bool = False


def record(what: str, wanted: Wanted, tell: Tell, note: Callable[[str], None]) -> dict[str, Any]:
    """Record `what` until its duration is over or `Aborted` is raised (Ctrl-C), which is a good
    end. what: a volume as KIND:PATH, or a block device as /dev/…. note: told a sentence of what a
    person should know. Returns what came of it.

    When the recording fails on its way, what was recorded until then is kept; the error says so.
    """
    found = paths.standard()
    found.make()
    with explained():
        opened = partial(_opened, Links())
        clean_up(found.state, opened, note)
        if what.startswith("/"):
            return _record_device(what, wanted, found.state, tell)
        return _record_volume(opened(what), wanted, found.state, tell, note)


def _opened(links: Links, text: str) -> Driver:
    endpoint = parse_endpoint(text, what="volume")
    if endpoint.host:
        return links.driver(endpoint, Hosts(paths.standard().hosts))
    return open_driver(endpoint)


def _record_volume(
    volume: Driver, wanted: Wanted, state: Path, tell: Tell, note: Callable[[str], None]
) -> dict[str, Any]:
    pace = _pace(wanted)
    seen = volume.facts()
    if seen.role is not Role.LIVE:
        raise not_live(str(volume))
    if wanted.files and (volume.remote or Capability.FILES not in volume.capabilities):
        raise UsageError(
            "--files is for volumes of files on this host",
            where=str(volume),
            why="it is on another host" if volume.remote else "it holds blocks",
        )
    if not volume.remote:
        _warn(seen, wanted, note)
    facts = Facts(
        name=wanted.name or str(volume),
        source_format=f"{volume.kind}-snapshots",
        volumes=(str(volume), f"{volume} (by object)"),
        notes={"recorded": str(volume), "resolution_s": f"{pace.interval_s:g}"},
    )
    with ExitStack() as stack:
        kept = stack.enter_context(journal(state))
        writer = _writer(wanted, facts, kept, stack)
        kept.left.volume = str(volume)
        kept.save()
        recorder = Recorder(
            volume, pace, kept, writer.write, lambda so_far: tell(asdict(so_far)), wanted.files
        )
        came = recorder.found

        def work(stop: threading.Event) -> None:
            recorder.run(stop)
            numbers = {"intervals": came.intervals, "missed": came.missed}
            if came.changed_files is not None and came.whole_file_bytes is not None:
                numbers["changed_files"] = came.changed_files
                numbers["whole_file_bytes"] = came.whole_file_bytes
            writer.facts = _finished(facts, came.began_ns, numbers)
            writer.close()

        stopped = stoppable(work, writer)
    return _document(str(volume), wanted, stopped, came)


def _record_device(what: str, wanted: Wanted, state: Path, tell: Tell) -> dict[str, Any]:
    if wanted.interval_s is not None or wanted.files:
        option = "--files" if wanted.files else "--interval"
        raise UsageError(
            f"{option} is for volumes", why="for a block device, every request is recorded"
        )
    device, tracing = kernel.device(what), kernel.tracing()
    facts = Facts(
        name=wanted.name or what,
        source_format="kernel",
        volumes=(what,),
        notes={"recorded": what, "device_bytes": str(device.bytes)},
    )
    with ExitStack() as stack:
        kept = stack.enter_context(journal(state))
        writer = _writer(wanted, facts, kept, stack)
        instance = tracing / "instances" / f"mirrord-{kept.number}"
        kept.left.folders.append(str(instance))
        kept.save()
        recorder = KernelRecorder(
            device,
            instance,
            writer.write,
            lambda so_far: tell(asdict(so_far)),
            wanted.duration_s,
        )
        came = recorder.seen

        def work(stop: threading.Event) -> None:
            recorder.run(stop)
            writer.facts = _finished(facts, came.began_ns, {"lost": came.lost})
            writer.close()

        stopped = stoppable(work, writer)
    return _document(what, wanted, stopped, came)


def _pace(wanted: Wanted) -> Pace:
    interval_s = wanted.interval_s or 60.0
    if not INTERVAL_MIN_S <= interval_s <= 7 * 86400:
        raise UsageError(
            f"--interval of {interval_s:g} s is not possible",
            why=f"it can be {INTERVAL_MIN_S:g} s to 7 days",
        )
    if wanted.duration_s is not None and wanted.duration_s < interval_s:
        raise UsageError("--duration is shorter than --interval: nothing would be recorded")
    return Pace(interval_s, wanted.duration_s)


def _warn(seen: VolumeFacts, wanted: Wanted, note: Callable[[str], None]) -> None:
    inside = os.path.realpath(seen.view).rstrip("/") + "/"
    if seen.view and os.path.realpath(wanted.out).startswith(inside):
        note("The trace is written into the volume that is recorded, so it records itself.")


def _writer(wanted: Wanted, facts: Facts, kept: Journal, stack: ExitStack) -> TraceWriter:
    """Opened; discarded when it was not closed by the end of `stack`."""
    kept.left.files.append(str(beside(wanted.out).absolute()))
    kept.save()
    writer = TraceWriter(wanted.out, facts)
    stack.callback(writer.discard)
    return writer


def stoppable(work: Callable[[threading.Event], None], writer: Any) -> bool:
    """Do `work` in a thread, so that an interrupt cannot cut it in two; returns whether it was
    interrupted. When it fails, what was recorded is kept if it can be, and the error says so.
    """
    stop, done = threading.Event(), threading.Event()
    failed, stopped = list[BaseException](), False

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="record")
    try:
        thread.start()
        # (A join that is interrupted takes the thread for ended: CPython 89722. A signal just
        # before a wait does not interrupt it.)
        while not done.wait(_SIGNAL_S):
            pass
    except Aborted:
        stopped = True
        stop.set()
        if thread.ident is not None:
            done.wait()
    if failed:
        error = failed[0]
        if isinstance(error, MirrordError) and writer.records and writer.is_open:
            records = writer.records
            writer.close()
            error.prepend_hint(f"What was recorded until then ({records} records) is kept.")
        raise error
    return stopped


def _finished(facts: Facts, began_ns: int, numbers: dict[str, int]) -> Facts:
    notes = facts.notes | {name: str(value) for name, value in numbers.items()}
    return Facts(facts.name, facts.source_format, facts.volumes, began_ns, notes)


def _document(what: str, wanted: Wanted, stopped: bool, came: Recorded | Seen) -> dict[str, Any]:
    told = {"status": "done", "what": what, "file": str(wanted.out), "stopped": stopped}
    return {**told, **asdict(came)}
