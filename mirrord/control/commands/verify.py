"""Prove that the destination equals the source, or name what differs.

Panel: Monitoring 9

Compares the snapshot that the destination shows with the same snapshot of the source, by digests
that each end computes of what it reads from its own disk: contents, names and metadata. Updates go
on meanwhile. The exit status is 1 when anything differs. `--changed` reads only what was changed
since the last verified snapshot, `--sample` a random part of all blocks. [verify.md](verify.md)
says how it works and what each of them proves.

Both images of a [live mirror](live-modes.md#compare-the-images) that is in sync are compared while
clients write; `--repair` overwrites what differs at the destination. The other options are not for
live mirrors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mirrord.control.command import MirrorName, Option, Right, Service, command
from mirrord.core.errors import UsageError
from mirrord.core.results import Result
from mirrord.core.verification import VerifyMode, sample_parts

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror
    from mirrord.live.mirror import LiveMirror


@command(Right.ACT)
def verify(
    service: Service,
    name: MirrorName,
    *,
    full: Annotated[bool, Option("Read everything at both ends (the default).")] = False,
    changed: Annotated[
        bool, Option("Read only what was changed since the last verified snapshot.")
    ] = False,
    sample: Annotated[
        str | None, Option("Read a random sample of all blocks, such as '1 %'.", "PERCENT")
    ] = None,
    repair: Annotated[
        bool,
        Option(
            "If contents differ: replace the snapshot that the destination shows by a corrected "
            "copy."
        ),
    ] = False,
    snapshot: Annotated[
        str | None,
        Option("The snapshot to verify; default: the one that the destination shows.", "SNAPSHOT"),
    ] = None,
) -> Result:
    from mirrord.engine import verify as engine
    from mirrord.live import serving

    modes = {"'--full'": full, "'--changed'": changed, "'--sample'": sample is not None}
    given = [flag for flag, used in modes.items() if used]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined")
    mode, parts = VerifyMode.FULL, 0
    if changed:
        mode = VerifyMode.CHANGED
    if sample is not None:
        mode, parts = VerifyMode.SAMPLE, _parts(sample)
    if repair and (sample is not None or snapshot is not None):
        raise UsageError(
            f"'--repair' cannot be combined with {'--sample' if sample else '--snapshot'}",
            hint="It repairs what --full or --changed finds in the snapshot that is shown.",
        )

    def live(mirror: LiveMirror) -> Result:
        if given or snapshot is not None:
            raise UsageError(
                "a live mirror is always compared completely",
                where=f"mirror '{name}'",
                hint=f"Run 'mirrord verify {name}', or with --repair.",
            )
        with mirror.waiting.cancellable(service.may_verify):
            return serving.verify(mirror, repair=repair)

    def work(mirror: Mirror) -> Result:
        with mirror.waiting.cancellable(service.may_verify):
            return engine.verify(mirror, mode, parts=parts, snapshot=snapshot, repair=repair)

    return service.look(name, work, live=live)


def _parts(text: str) -> int:
    """A percentage as parts of a million."""
    try:
        return sample_parts(text)
    except ValueError as error:
        raise UsageError(
            f"'{text}' is not a sample size",
            why=str(error),
            hint="Write for example --sample '1 %'.",
        ) from None
