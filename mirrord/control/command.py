"""How a command is declared: one function in `mirrord/control/commands/NAME.py`.

Its signature is the request, its return type the result. The command line, the socket API,
completion, the manual page and the documents follow from it. The module's docstring holds what
they say: a line of help, `Panel: TITLE NUMBER` (its place on the help page), and the text of
docs/commands.md.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)

from mirrord.core.errors import ProtocolError, UsageError
from mirrord.wire import values

if TYPE_CHECKING:
    from mirrord.control.api import Service as Service
else:
    Service = object  # to load it would load the engine, which a client does without

P = ParamSpec("P")
R = TypeVar("R")
#: Shows a result as lines, given that and the arguments.
Text = Callable[[Any, Mapping[str, Any]], Iterable[str]]


class Right(enum.Enum):
    """What a caller needs: the socket for readers is enough for READ."""

    READ = "read"
    ACT = "act"


class Lock(enum.Enum):
    """How the daemon runs a command beside other operations of its mirror."""

    NONE = "none"
    #: It transfers, so it waits for its turn among the others.
    QUEUED = "queued"
    #: It ends what goes on with the mirror, so nothing of that mirror begins meanwhile.
    ENDS_RUNS = "ends-runs"


class Argument(NamedTuple):
    """A parameter that is a word of the command line."""

    metavar: str
    help: str


class Option(NamedTuple):
    """A parameter that is an option of the command line. flags: by default `--NAME`. most: of a
    number, which is then at least 1.
    """

    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    most: int | None = None


MirrorName = Annotated[str, Argument("NAME", "The mirror's name.")]
Yes = Annotated[bool, Option("Do not ask for confirmation.", flags=("--yes", "-y"))]
Force = Annotated[
    bool, Option("Also if files of the volume to be rolled back are open for writing.")
]


class Call(NamedTuple, Generic[R]):
    """A command with its arguments, to be run by a `Runner`."""

    command: Command[..., R]
    arguments: Mapping[str, Any]

    @property
    def mirror(self) -> str:
        """The mirror that it concerns, or ""."""
        return str(self.arguments.get("name") or "")

    def line(self) -> str:
        """The command line of this call."""
        import shlex  # for confirmations only

        words = ["mirrord", *self.command.words.split()]
        if isinstance(self.command.when, Option):
            words.append(self.command.when.flags[0])
        for parameter in self.command.parameters:
            value = self.arguments.get(parameter.name, parameter.default)
            if value == parameter.default:
                continue
            flag = [] if isinstance(parameter.shown, Argument) else [parameter.flags[0]]
            for one in value if isinstance(value, tuple) else [value]:
                words += [*flag, *([] if one is True else [str(one)])]
        return shlex.join(words)


class Runner(Protocol):
    """Who runs commands: the service in this process, or the client of a daemon."""

    def run(self, call: Call[R]) -> R:
        """Run it; raises `MirrordError`."""

    def close(self) -> None:
        """Release what it holds."""


class Parameter(NamedTuple):
    """A parameter of a command. kind: its type. default: `...` for none."""

    name: str
    kind: Any
    default: Any
    shown: Argument | Option

    @property
    def flags(self) -> tuple[str, ...]:
        """Of an option."""
        own = self.shown.flags if isinstance(self.shown, Option) else ()
        return own or ("--" + self.name.replace("_", "-"),)

    @property
    def is_many(self) -> bool:
        """Whether it may be given several times."""
        return typing.get_origin(self.kind) is tuple

    @property
    def omitted(self) -> Any:
        """Its value on a command line without it."""
        return None if self.is_many or self.default in ("", None) else self.default

    @property
    def one(self) -> type:
        """The type of a value that is given."""
        kinds: tuple[type, ...] = typing.get_args(self.kind)
        return next((kind for kind in kinds if kind is not type(None)), self.kind)

    def parsed(self, packed: Any) -> Any:
        """A value from JSON; `ProtocolError` or `TypeError` when it does not fit."""
        value, shown = values.unpack(self.kind, packed), self.shown
        most = shown.most if isinstance(shown, Option) else None
        if most is not None and not 1 <= value <= most:
            raise TypeError(f"{self.name} {value} is not from 1 to {most}")
        return value


class Command(Generic[P, R]):
    """A declared command. It is called with its arguments; the result is a `Call`."""

    def __init__(
        self,
        work: Callable[Concatenate[Service, P], R],
        right: Right,
        lock: Lock,
        words: str,
        when: Option | str | None,
        text: Text | None,
        document: Callable[[Any], Any],
        ended_by: str,
    ) -> None:
        """words: on the command line, after `mirrord`. The others: see `command`."""
        self.work: Callable[..., R] = work
        self.name, self.words = work.__name__, words
        self.right, self.lock = right, lock
        self.when, self.text, self.document = when, text, document
        self.ended_by = ended_by

    @cached_property
    def doc(self) -> str:
        """What the function says."""
        from inspect import cleandoc  # slow to load: a command is run without

        return cleandoc(self.work.__doc__ or "")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The command with these arguments."""
        names = self.work.__code__.co_varnames[1:]
        return Call(self, {**dict(zip(names, args, strict=False)), **kwargs})

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        return typing.get_type_hints(self.work, include_extras=True)

    @cached_property
    def result(self) -> Any:
        """The type of its result."""
        return self._kinds["return"]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All but the service."""
        code, given = self.work.__code__, self.work.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        last = names[code.co_argcount - len(given) : code.co_argcount]
        defaults = {**dict(zip(last, given, strict=True)), **(self.work.__kwdefaults__ or {})}
        return tuple(
            Parameter(
                name,
                typing.get_args(self._kinds[name])[0],
                defaults.get(name, ...),
                self._kinds[name].__metadata__[0],
            )
            for name in names[1:]
        )

    def parsed(self, packed: Mapping[str, Any]) -> Call[R]:
        """A call from JSON; `UsageError` when the arguments do not fit."""
        known = {each.name: each for each in self.parameters}
        try:
            found = {key: known[key].parsed(value) for key, value in packed.items()}
            for name, each in known.items():
                if name not in found and each.default is ...:
                    raise TypeError(f"missing a required argument: '{name}'")
        except (KeyError, TypeError, ProtocolError) as error:
            why = error.why if isinstance(error, ProtocolError) else str(error)
            raise UsageError(f"'{self.name}': invalid arguments", why=why) from None
        return Call(self, found)


def command(
    right: Right,
    lock: Lock = Lock.NONE,
    *,
    words: str = "",
    when: Option | str | None = None,
    text: Text | None = None,
    document: Callable[[Any], Any] = values.as_json,
    ended_by: str = "",
) -> Callable[[Callable[Concatenate[Service, P], R]], Command[P, R]]:
    """Declare a function as a command. Of several with the same words, one is chosen by `when`:
    an option of its own, or the name of a parameter; the one without is the default.

    words: by default the module's name. text: the lines that show a result which is no `Result`,
    given that and the arguments. document: its JSON. ended_by: the name of the command on the same
    mirror that undoes it; on the command line `--foreground` then stays, and runs that at the end.
    """

    def declare(work: Callable[Concatenate[Service, P], R]) -> Command[P, R]:
        usual = work.__module__.rpartition(".")[2].rstrip("_").replace("_", "-")
        return Command(work, right, lock, words or usual, when, text, document, ended_by)

    return declare
