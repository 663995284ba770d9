"""Entry point: finds the command, runs it, and turns every failure into one clear line.

Exit status: 0 done; 1 it failed or was refused; 2 bad usage or definition; 130 interrupted.
"""

from __future__ import annotations

import codecs
import errno
import gc
import importlib
import io
import locale
import os
import resource
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from mirrord.cli.table import commands, entry_of, help_page, module_of, modules_of
from mirrord.core.errors import Aborted, IoFailed, MirrordError, UsageError
from mirrord.core.names import nearest
from mirrord.core.text import ESCAPING, harmless

if TYPE_CHECKING:
    import typer

#: The exit status when the reader of our output went away, as of a program that SIGPIPE ended.
_NOBODY_READS = 141
#: How soon a signal that was passed over is raised again.
_AGAIN_S = 1.0


def build(names: Iterable[str]) -> typer.Typer:
    """The application with these commands; each costs its imports."""
    import typer

    settings: dict[str, Any] = {"help_option_names": ["--help", "-h"]}
    app = typer.Typer(no_args_is_help=True, context_settings=settings)
    app.callback()(lambda: None)  # so that one command alone is called by its name, too
    for name in names:
        found, entry = _functions(name), entry_of(name)
        assert entry is not None, name
        if list(found) == [name]:
            help = f"{entry.help}\n\n{_paragraphs(found[name])}"
            app.command(name, help=help)(found[name])
            continue
        group = typer.Typer(no_args_is_help=True)
        for words, function in found.items():
            group.command(words.removeprefix(f"{name} "), help=_paragraphs(function))(function)
        app.add_typer(group, name=name, help=entry.help)
    return app


def _paragraphs(function: Callable[..., Any]) -> str:
    """What a function says, without line breaks in a paragraph: the terminal has its own width."""
    return "\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n"))


def _functions(name: str) -> dict[str, Callable[..., Any]]:
    """A command's function, or those of a group, by the words that call them."""
    found: dict[str, Callable[..., Any]] = {}
    for module_name in modules_of(name):
        module = importlib.import_module(module_name)
        if ".control." in module_name:
            from mirrord.cli.declared import functions

            found |= functions(module)
        elif hasattr(module, "COMMANDS"):
            found |= {f"{name} {word}": function for word, function in module.COMMANDS.items()}
        else:
            found[name] = getattr(module, module_of(name))
    return found


def _plain(arguments: list[str]) -> Callable[[], int] | None:
    """The work of a command line that needs no typer."""
    for module_name in modules_of(arguments[0]):
        if ".control." in module_name:
            from mirrord.cli.declared import call_of

            if call := call_of(importlib.import_module(module_name), arguments):
                return call
    return None


def _wanted(arguments: list[str]) -> list[str]:
    """The commands to load: the one that is called, or all for completion."""
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and entry_of(first) and "_MIRRORD_COMPLETE" not in os.environ:
        return [first]
    if first is not None:
        near = nearest(first, commands())
        raise UsageError(
            f"there is no command '{first}'",
            hint=f"Did you mean 'mirrord {near[0]}'?" if near else "'mirrord --help' lists them.",
        )
    return list(commands())


def _called(arguments: list[str]) -> int:
    """Run a command, or show the help page or the version, which load none."""
    first = "" if "_MIRRORD_COMPLETE" in os.environ else next(iter(arguments), "--help")
    if first in ("--help", "-h"):
        print(help_page())
        return 0 if arguments else 2
    if first == "--version":
        from mirrord import __version__

        print(f"mirrord {__version__}")
        return 0
    if first and (call := _plain(arguments)):
        return call()
    status = build(_wanted(arguments))(args=arguments, prog_name="mirrord", standalone_mode=False)
    return status if isinstance(status, int) else 0


class _Signals:
    """SIGINT, SIGTERM and SIGHUP end the work in order; a second one does not disturb cleaning up.

    `Aborted` may be taken for the failure of what was being done, such as that of an end that is
    not reached, and the work continues. Where nobody holds it any more, it is raised again.
    """

    def __init__(self) -> None:
        self.seen: int | None = None
        self._raised: Callable[[], object] = lambda: None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: Any) -> None:
        if self.seen is None:
            self.seen = number
            signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        if self._raised() is None:
            error = Aborted(
                "interrupted",
                why=signal.Signals(self.seen).name,
                hint="Committed data is safe; the next command resumes or cleans up.",
            )
            self._raised = weakref.ref(error)
            try:
                raise error
            finally:
                del error  # its traceback has this frame, which would hold it

    def ignore(self) -> None:
        """The work has ended: nothing more is raised."""
        self._raised = lambda: self
        if self.seen is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Run the command line of this process."""
    # A command is nearly all imports, and nothing in those is garbage.
    gc.set_threshold(100_000)
    # A core dump would hold keys, and data of users. What it starts inherits this.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _use_utf8()
    _open_streams()
    try:
        status = run(sys.argv[1:])
    except BrokenPipeError:
        status = _NOBODY_READS  # nor the error
    # Everything is closed and flushed: taking the interpreter down piece by piece would only
    # take time from whoever waits for the command.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


def _use_utf8() -> None:
    """Definitions are UTF-8 and names are bytes, whatever the locale says: where Python would take
    them for something else, the program begins again.
    """
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        words = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - no shell is wanted


def _open_streams() -> None:
    """Nothing that is opened later takes the place of a standard stream that is closed. What a
    terminal's encoding does not have is escaped.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - a descriptor
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - a descriptor
    wanted = locale.getencoding()
    encoding = None if codecs.lookup(wanted).name in ("ascii", "utf-8") else wanted
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors=ESCAPING)


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit status."""
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    as_json = "--json" in arguments
    signals = _Signals()
    signals.install()
    try:
        try:
            status = _called(arguments)
        finally:
            signals.ignore()
        sys.stdout.flush()
        return status
    except MirrordError as error:
        if debug:
            raise
        _report(error, as_json=as_json)
        if isinstance(error, Aborted) and signals.seen is not None:
            return 128 + signals.seen
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output went away (`| head`): no error, and nothing more to say.
        return _NOBODY_READS
    except SystemExit as error:  # completion ends so, and what the library makes of a closed pipe
        return _NOBODY_READS if error.code else 0
    except BaseException as error:
        if type(error).__name__ == "Abort":  # of typer, which not every command loads
            print("error: not confirmed; nothing was done", file=sys.stderr)
            return 1
        if debug or not _is_bug(error):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            full = IoFailed("the output cannot be written", why=error.strerror or str(error))
            _report(full, as_json=False)
            return 1
        if isinstance(error, OSError) and error.filename is not None:
            _report(_explained(error), as_json=as_json)
            return 1
        message = getattr(error, "format_message", None)
        if message is not None and not message():
            return 2  # no arguments: click has printed the help page
        if message is not None:
            command = " ".join(["mirrord", *[a for a in arguments[:1] if not a.startswith("-")]])
            usage = UsageError(_lowered(message()), hint=f"'{command} --help' shows the usage.")
            _report(usage, as_json=as_json)
            return 2
        bug = MirrordError(
            f"unexpected: {type(error).__name__}: {error}",
            hint="This is a bug in mirrord: please report it with what --debug shows.",
        )
        _report(bug, as_json=as_json)
        return 1


def _is_bug(error: BaseException) -> bool:
    """Whether nobody else answers for it; a start does without the native code that may panic."""
    if isinstance(error, Exception):
        return True
    from mirrord.system.native import Panic

    return isinstance(error, Panic)


def _explained(error: OSError) -> MirrordError:
    from mirrord.system.explain import explained

    try:
        with explained():
            raise error
    except MirrordError as clear:
        return clear


def _lowered(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _report(error: MirrordError, *, as_json: bool) -> None:
    if as_json:
        import json

        _say(json.dumps(error.as_dict()), sys.stdout)
    _say(f"error: {error}", sys.stderr)
    if error.hint:
        _say(f"hint: {harmless(error.hint)}", sys.stderr)
    for note in getattr(error, "__notes__", []):
        _say(f"note: {harmless(note)}", sys.stderr)


def _say(line: str, stream: TextIO) -> None:
    """Print a line of an error; an output that is full does not change the exit status."""
    try:
        print(line, file=stream)
    except BrokenPipeError:
        raise
    except OSError:
        return
