"""The one place that starts other programs: argument lists only, which no shell interprets."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from mirrord.core.errors import IoFailed, Unsupported
from mirrord.system import clock

_OUTPUT_BYTES_MAX = 64 << 10
_CHECK_EVERY_S = 0.1

#: For `start`: no input, or output is discarded.
NO_INPUT = subprocess.DEVNULL
#: Runs the program that its arguments name, and holds its own input open meanwhile. It is in that
#: program's process group: the trap is for one that ends its children by a signal to the group.
_HOLDING = ("/bin/sh", "-c", 'trap true TERM; "$@" </dev/null; exit $?', "sh")
#: For `start`: a pipe, available as an attribute of the process.
PIPE = subprocess.PIPE
Process = subprocess.Popen[bytes]


class Result(NamedTuple):
    """The exit status of a program, with the end of its output."""

    status: int
    output: str
    errors: str

    def ending(self) -> str:
        """How it ended, as `exited with status 1`; with the last line of its output."""
        how = f"exited with status {self.status}"
        if self.status < 0:
            how = f"was ended by signal {-self.status}"
        printed = (self.errors or self.output).strip().splitlines()
        return how + (f": {printed[-1][:200]}" if printed else "")


def find(program: str, *, hint: str) -> str:
    """The path of a program; `Unsupported` with `hint` when it is not installed."""
    # Administrators' programs may be outside an ordinary user's PATH. (shutil.which would do, but
    # importing shutil takes longer than the rest of the startup.)
    folders = (*os.get_exec_path(), "/usr/sbin", "/sbin", "/usr/bin", "/bin")
    for path in [program] if "/" in program else [f"{folder}/{program}" for folder in folders]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    found = "/" in program and os.path.exists(program)
    why = "is not an executable file" if found else "is not installed"
    raise Unsupported(f"the program '{program}' {why}", hint=hint)


def run(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    output_bytes_max: int = _OUTPUT_BYTES_MAX,
    given: bytes | None = None,
    hold: int | None = None,
    check: Callable[[], None] | None = None,
) -> Result:
    """Run a program to its end. `IoFailed` when it takes longer than that.

    given: its input; None: it has none. hold: a descriptor to keep open until the program itself
    has ended, even if this process is killed; what it leaves running does not inherit it. check:
    called ten times a second; an error that it raises ends the program and all its children.
    environment: variables set in addition to those of this process. output_bytes_max: how much of
    the end of its output is returned. On a timeout the children of the program are killed as well.
    """
    assert given is None or hold is None, arguments
    no_input = NO_INPUT if hold is None else hold
    process = subprocess.Popen(
        [*(() if hold is None else _HOLDING), *arguments],
        stdin=no_input if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=_environment(environment),
    )
    try:
        tails = _communicate(process, given, timeout_s, check, output_bytes_max)
    except subprocess.TimeoutExpired:
        end_session(process)  # the program may have ended while its children still run
        raise IoFailed(f"'{arguments[0]}' did not end within {timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            end_session(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return Result(process.returncode, *(tail.decode(errors="replace") for tail in tails))


def _communicate(
    process: Process,
    given: bytes | None,
    timeout_s: float,
    check: Callable[[], None] | None,
    output_bytes_max: int,
) -> list[bytes]:
    """The ends of what it prints. (`Popen.communicate` keeps all of it, which may be endless.)"""
    assert process.stdout is not None and process.stderr is not None, process.args
    checked_s, left = clock.monotonic_s(), memoryview(given or b"")
    until_s = checked_s + timeout_s
    tails = [(bytearray(), output_bytes_max), (bytearray(), _OUTPUT_BYTES_MAX)]
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, tails[0])
        pipes.register(process.stderr, selectors.EVENT_READ, tails[1])
        if process.stdin is not None:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
        while pipes.get_map() or process.poll() is None:
            now_s = clock.monotonic_s()
            if now_s >= until_s:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            wait_s = until_s - now_s
            if check is not None:
                wait_s = min(wait_s, _CHECK_EVERY_S)
                if now_s - checked_s >= _CHECK_EVERY_S:  # not for each part of a long output
                    checked_s = now_s
                    check()
            if not pipes.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(wait_s)
                continue
            for key, _ in pipes.select(wait_s):
                if key.fileobj is process.stdin:
                    left = _given(key.fd, left)
                    over = not left
                else:
                    over = _taken(key.fd, *key.data)
                if over:
                    pipes.unregister(key.fileobj)
                if over and key.fileobj is process.stdin:
                    process.stdin.close()
    return [bytes(tail[-limit:]) for tail, limit in tails]


def _taken(descriptor: int, tail: bytearray, limit: int) -> bool:
    """Read some of a program's output into `tail`; returns whether that was all of it."""
    data = os.read(descriptor, _OUTPUT_BYTES_MAX)
    tail += data
    if len(tail) > 2 * limit:
        del tail[:-limit]
    return not data


def _given(descriptor: int, left: memoryview) -> memoryview:
    """Write some of a program's input; returns the rest, none when it does not read any more."""
    try:
        return left[os.write(descriptor, left[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return left[:0]


def end_session(process: Process) -> None:
    """Kill a program and all its children, and wait for it. Call once only: afterwards its process
    id may be reused.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended(process: Process, *, timeout_s: float | None) -> int | None:
    """The status of a program that has ended or ends within `timeout_s` (None: no limit); negative:
    the signal that killed it. None while it runs. Its process id stays valid, for `end_session`.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        watched = os.pidfd_open(process.pid)
        try:
            waiting = select.poll()
            waiting.register(watched, select.POLLIN)
            waiting.poll(None if timeout_s is None else timeout_s * 1000)
            found = os.waitid(os.P_PIDFD, watched, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        finally:
            os.close(watched)
    except (ProcessLookupError, ChildProcessError):
        return process.wait()  # another thread has waited for it, and records its status just now
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def start(
    arguments: Sequence[str],
    *,
    stdin: int,
    stderr: int,
    stdout: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    keep: Sequence[int] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Process:
    """Start a program that reads `stdin`; the caller waits for it and kills it if need be.

    keep: descriptors that it inherits and holds open until it exits. folder: where it runs.

    It gets its own session, so that a Ctrl-C at the terminal reaches only mirrord, which then
    ends it in an orderly way.
    """
    return subprocess.Popen(
        list(arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env=_environment(environment),
        pass_fds=tuple(keep),
        cwd=folder,
    )


def _environment(added: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if added is None else {**os.environ, **added}
