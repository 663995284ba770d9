"""Why a mirror is as it is, and which command changes that, for people."""

from __future__ import annotations

from mirrord.core.errors import MirrordError
from mirrord.core.results import Result
from mirrord.core.states import LIVE_VERBS, State
from mirrord.core.status import MirrorStatus
from mirrord.core.units import format_size
from mirrord.engine import after_break, plan, report
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system.waiting import LOOK_S


def explain(mirror: Mirror) -> Result:
    """Why things are as they are, and which command changes it: one finding a line."""
    found = report.status(mirror)
    findings = [
        f"State: {found.state}; activity: {found.activity.value}.",
        *_explain_base(mirror, found),
        *_explain_last(mirror),
    ]
    if found.reading.quiesced:
        findings.append(f"It is quiesced: no transfer starts until 'mirrord resume {mirror.name}'.")
    if running := found.running:
        findings.append(
            f"Process {running.pid} holds it ({running.purpose}). "
            f"'mirrord abort {mirror.name}' stops that."
        )
    if saved_bytes := found.reading.checkpoint.size_bytes:
        findings.append(
            f"An interrupted transfer left a checkpoint of {format_size(saved_bytes)}: the next "
            "transfer resumes from there."
        )
    operation = mirror.catalogue.operation(mirror.id)
    if operation and operation.verb not in LIVE_VERBS and not found.running:
        findings.append(
            f"An interrupted {operation.verb} (phase {operation.phase}) will be recovered by the "
            "next command that changes this mirror."
        )
    findings.extend(f"Problem: {problem}." for problem in found.problems)
    findings.extend(found.reading.notes)
    source_facts, trouble = report.facts_of(mirror.source)
    if trouble:
        findings.append(f"The source cannot be reached: {trouble}.")
    elif source_facts:
        findings.extend(f"Source: {report.sentence(note)}" for note in source_facts.notes)
    return Result(found.state, "\n".join(findings), {"findings": findings})


def _explain_base(mirror: Mirror, found: MirrorStatus) -> list[str]:
    if found.reading.state is State.UNINITIALIZED:
        return [f"Nothing has been transferred yet: run 'mirrord initialize {mirror.name}'."]
    try:
        with mirror.waiting.hurried(LOOK_S):
            here, there = mirror.source.snapshots(), mirror.destination.snapshots()
    except (MirrordError, OSError) as error:
        return [f"The base cannot be checked: {one_line(error)}."]
    common = plan.newest_complete_set(here, there)
    newest = common.name if common else "none"
    count = len({s.guid for s in here if s.intact} & {s.guid for s in there if s.intact})
    lines = [f"Common snapshots: {count}; the newest is {newest}."]
    if found.reading.state is State.BROKEN_OFF:
        lines.append(f"It is broken off. {after_break.to_mirror_again(mirror)}")
        return lines
    facts, _ = report.facts_of(mirror.destination)
    if facts and facts.shown:
        base = plan.find_base(mirror.name, here, there, facts.shown)
        if isinstance(base, plan.Conflict):
            lines.append(f"The next update is blocked: {base.why}. {base.hint}")
        elif not found.reading.base_risk:  # (that is one of the problems)
            lines.append(f"The next update is incremental, from {base.name}.")
    return lines


def _explain_last(mirror: Mirror) -> list[str]:
    transfers = mirror.catalogue.transfers(mirror.id, limit=50)
    lines = []
    if transfers:
        last = transfers[0]
        how = f"incremental ({format_size(last.stream_bytes)})"
        if last.base is None:
            how = f"full ({format_size(last.stream_bytes)}): {last.full_reason or 'no base'}"
        tail = f": {last.error}" if last.error else ""
        lines.append(f"The last transfer, {last.name}, was {how}; result: {last.result}{tail}.")
    full = [row for row in transfers[1:] if row.base is None and row.result == "done"]
    if full and transfers[0].base is not None:
        lines.append(
            f"The last full transfer was {full[0].name}: {full[0].full_reason or 'no base'}."
        )
    return lines
