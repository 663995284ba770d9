"""The lines of a plan that is to be confirmed: what a switch loses, and what is in its way."""

from __future__ import annotations

from collections.abc import Sequence

from mirrord.core.model import Divergence, OpenWriter, Snapshot, VolumeFacts
from mirrord.core.text import escaped
from mirrord.core.units import counted, format_size
from mirrord.engine import failover_steps, plan

_FILES_SHOWN = 20


def replaced_lines(source: Sequence[Snapshot], common: Snapshot) -> list[str]:
    """A note when another volume is in the place of the source. source: its snapshots."""
    why = plan.unrelated_reason(source, {common.guid})
    if not why:
        return []
    return [f"   Note: the source was replaced by another volume ({why}), which is mirrored."]


def newer_lines(name: str, newer: Sequence[Snapshot]) -> list[str]:
    """What only the destination has and retention will delete (`plan.only_there`)."""
    if not newer:
        return []
    last = newer[-1].name
    return [
        f"   The source does not have the {counted(len(newer), 'newer snapshot')} of the "
        f"destination, up to {last}. Retention will delete them.",
        f"   To return the source to it instead: mirrord restore {name} --all --snapshot {last}",
    ]


def nested_lines(facts: VolumeFacts) -> list[str]:
    """Notes on a volume that is about to be set aside."""
    lines = [f"   Note: {note}" for note in facts.notes]
    if lines:
        lines.append("   Nested subvolumes are moved with the losing side.")
    return lines


def writer_lines(writers: Sequence[OpenWriter]) -> list[str]:
    """Warnings about processes that write to a volume that is about to be set aside."""
    return [f"   Warning: {failover_steps.described(one)} open for writing." for one in writers]


def loss_lines(lost: Divergence | None) -> list[str]:
    """What a rollback loses, to be read before it is confirmed."""
    if lost is None:
        return []
    if not (lost.changed_bytes or lost.total_changes):
        return ["   Nothing is lost: it has no changes of its own."]
    word, end = ("block", ".") if lost.changes is None else ("change", ":")
    count = counted(lost.total_changes, word)
    lines = [f"   It loses {count} of its own ({format_size(lost.changed_bytes)}){end}"]
    shown = (lost.changes or ())[:_FILES_SHOWN]
    lines += [f"     {change.change:9} {escaped(change.path)}" for change in shown]
    if lost.changes is not None and lost.total_changes > len(shown):
        lines.append(f"     … and {lost.total_changes - len(shown)} more")
    lines.append("   This is kept as a `diverged` snapshot.")
    return lines
