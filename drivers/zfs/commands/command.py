"""The only module that runs `zfs` and `zpool`: exact argument lists, never a shell, and counted."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mirrord.core.errors import MirrordError
from mirrord.drivers.zfs.commands import failures, helper
from mirrord.system import command, steps
from mirrord.system.command import Process, Result

#: The limit for a command: it waits for the pool to write, and a pool may be busy for minutes.
_TIMEOUT_S = 600.0
#: A listing of 100,000 snapshots has about 12 MB.
_OUTPUT_BYTES_MAX = 1 << 30
_HINT = (
    "Install OpenZFS: zfsutils-linux with the module zfs-dkms on Debian (contrib), then "
    "'modprobe zfs'."
)
#: Messages are parsed, so they must be the untranslated ones.
ENVIRONMENT = {"LC_ALL": "C", "LANG": "C"}

_guard = threading.Lock()
_executions = 0


def executions() -> int:
    """How often this process has started `zfs` or `zpool`."""
    return _executions


def _count() -> None:
    global _executions
    with _guard:
        _executions += 1


@functools.cache
def program(name: str) -> str:
    """The path of `zfs` or `zpool`."""
    return command.find(name, hint=_HINT)


def result(arguments: Sequence[str], *, given: bytes | None = None) -> Result:
    """Run `zfs` or `zpool`, or let the helper do the same, and wait for its end. An error status is
    not raised. given: its input.
    """
    done = helper.attempt(arguments, given, timeout_s=_TIMEOUT_S)
    if done is not None:
        return done
    _count()
    return command.run(
        [program(arguments[0]), *arguments[1:]],
        timeout_s=_TIMEOUT_S,
        environment=ENVIRONMENT,
        output_bytes_max=_OUTPUT_BYTES_MAX,
        given=given,
    )


def run(arguments: Sequence[str], where: str) -> str:
    """Run a command and return its output; raises the error of `failures.translate`."""
    done = result(arguments)
    if done.status != 0:
        raise failure(where, arguments, done.errors)
    return done.output


def failure(where: str, arguments: Sequence[str], said: str) -> MirrordError:
    """The mirrord error for a failed command; other commands are run for details and the hint."""
    return failures.translate(where, arguments, said, ask=lambda words: result(words).output)


def lenient(label: str, arguments: Sequence[str], where: str, *ignored: str) -> bool:
    """Run a changing command; returns False when it failed with one of the texts `ignored`: then
    there was nothing to do.
    """
    steps.reached(label)
    done = result(arguments)
    if done.status != 0 and not any(text in done.errors for text in ignored):
        raise failure(where, arguments, done.errors)
    return done.status == 0


class Task(NamedTuple):
    """A labelled command for `together`. ignored: see `lenient`; None: ignore all errors."""

    label: str
    arguments: Sequence[str]
    ignored: tuple[str, ...] | None = ()


def together(tasks: Sequence[Task], where: str) -> None:
    """Run independent commands at the same time: each waits for the pool to write, and so they wait
    together. When all have ended, the first error is raised.
    """
    for task in tasks:
        steps.reached(task.label)
    with ThreadPoolExecutor(len(tasks)) as pool:
        ended = list(pool.map(lambda task: result(task.arguments), tasks))
    for task, done in zip(tasks, ended, strict=True):
        ignored = task.ignored is None or any(text in done.errors for text in task.ignored)
        if done.status != 0 and not ignored:
            raise failure(where, task.arguments, done.errors)


def effect(label: str, arguments: Sequence[str], where: str) -> None:
    """`run` for a command that changes something: a labelled step."""
    steps.reached(label)
    run(arguments, where)


def start(
    arguments: Sequence[str], *, stdin: int, stdout: int, stderr: int, keep: Sequence[int] = ()
) -> Process:
    """Start a `zfs send` or `zfs recv`; see `mirrord.system.command.start`."""
    _count()
    return command.start(
        [program(arguments[0]), *arguments[1:]],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        environment=ENVIRONMENT,
        keep=keep,
    )
