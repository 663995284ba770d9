"""Hook programs around snapshots and transfers. docs/hooks.md describes their environment.

An argument list, never a shell; a time limit. A `before_` hook that fails stops what follows. An
`after_` hook runs even when the `before_` hook or the step between them failed: what was frozen
must be thawed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirrord.core.errors import Aborted, HookFailed, MirrordError
from mirrord.system import command

if TYPE_CHECKING:
    from mirrord.engine.mirror import Mirror


@contextmanager
def around(mirror: Mirror, what: str, **facts: str) -> Iterator[dict[str, str]]:
    """Run `before_WHAT` and `after_WHAT` around a block; what: "snapshot" or "transfer".

    Yields a dict: what the block puts there is in the environment of the second one.
    `HookFailed` when the first fails; the second's failure is a warning in the history.
    """
    before = getattr(mirror.definition.hooks, f"before_{what}")
    after = getattr(mirror.definition.hooks, f"after_{what}")
    hook_facts = dict(facts)
    if not before and not after:
        yield hook_facts
        return
    result, problem = "failed", ""
    try:
        if before:
            run(mirror, f"before_{what}", before, facts)
        yield hook_facts
        result = "done"
    except BaseException as error:
        problem = str(error)
        raise
    finally:
        if after:
            hook_facts |= {"result": result, "error": problem}
            try:
                run(mirror, f"after_{what}", after, hook_facts)
            except MirrordError as error:
                mirror.catalogue.add_event(mirror.id, "warning", str(error))


def run(mirror: Mirror, event: str, program: tuple[str, ...], facts: Mapping[str, str]) -> None:
    """Run one hook to its end; `HookFailed` has its status and its last line of output."""
    definition = mirror.definition
    environment = {
        "MIRRORD_EVENT": event,
        "MIRRORD_MIRROR": definition.name,
        "MIRRORD_ID": definition.id,
        "MIRRORD_SOURCE": ", ".join(str(pair.source) for pair in definition.pairs),
        "MIRRORD_DESTINATION": ", ".join(str(pair.destination) for pair in definition.pairs),
        **{f"MIRRORD_{key.upper()}": value for key, value in facts.items()},
    }
    where = f"mirror '{definition.name}'"
    try:
        done = command.run(
            program,
            timeout_s=definition.hooks.timeout_s,
            environment=environment,
            # An `after_` hook is not aborted: it must resume what the `before_` hook paused.
            check=mirror.run.check_abort if event.startswith("before_") else None,
        )
    except Aborted:
        raise
    except (MirrordError, OSError) as error:
        why = f"'{program[0]}': {error.strerror}" if isinstance(error, OSError) else str(error)
        raise HookFailed(f"the hook {event} failed", where=where, why=why, hint=_HINT) from error
    if done.status != 0:
        raise HookFailed(
            f"the hook {event} failed",
            where=where,
            why=f"'{program[0]}' {done.ending()}",
            hint=_HINT,
        )


_HINT = "Fix the hook program, or remove it from the definition; nothing was transferred."
