"""Logging and recording of finished runs."""

from __future__ import annotations

from mirrord.control.api import Service
from mirrord.core.errors import MirrordError
from mirrord.core.units import format_duration, format_size
from mirrord.daemon.journal import say
from mirrord.scheduler.jobs import Job, Outcome


def report(job: Job, outcome: Outcome) -> None:
    """Log the outcome in one line."""
    facts = {"mirror": job.name, "verb": job.verb, "cause": job.cause, "try": job.number}
    duration = format_duration(outcome.duration_s)
    if outcome.error is not None:
        again = f" (attempt {job.number})" if job.number > 1 else ""
        say(
            "error" if outcome.error.code != "aborted" else "info",
            f"{job.name}: {job.verb} failed after {duration}{again}: {outcome.error}",
            **facts,
            code=outcome.error.code,
        )
        return
    update = outcome.update
    if update is not None and update.not_resumed:
        say("error", f"{job.name}: may still be paused: {update.not_resumed}", **facts)
    if update is None or not update.snapshot:
        if job.verb != "update":
            say("info", f"{job.name}: {job.verb} {outcome.status} in {duration}", **facts)
        return
    size, waited = update.stream_bytes, update.throttled_s
    throttled = f", {format_duration(waited)} of it throttled" if waited > 0.1 else ""
    resumed = (
        f", after {format_size(update.resumed_bytes)} of an earlier attempt"
        if update.resumed_bytes
        else ""
    )
    say(
        "info",
        f"{job.name}: {job.verb} ({job.cause}) done: {format_size(size)} in {duration}"
        f"{throttled}{resumed}, now shows {update.snapshot}",
        **facts,
        bytes=size,
        duration_s=round(outcome.duration_s, 3),
    )


def record_attempt(service: Service, job: Job, error: MirrordError) -> None:
    """Record a failed attempt, with its reason."""
    if job.name not in service.definitions.names():
        return
    definition = service.definitions.load(job.name)
    if service.catalogue.mirror(definition.id) is None:
        return
    service.catalogue.add_attempt(
        definition.id,
        verb=job.verb,
        cause=job.cause,
        number=job.number,
        code=error.code,
        error=str(error),
    )
