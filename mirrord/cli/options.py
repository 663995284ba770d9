"""Parameters of commands as typer takes them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from mirrord.control.command import Argument, Parameter

Json = Annotated[bool, typer.Option("--json", help="Print JSON (docs/cli-json.md).")]
_Foreground = Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C, then undo it.")]


def finite(number: float) -> float:
    """A given number, unless it is `nan` or `inf`, which are in most ranges."""
    if not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number")
    return number


def with_parameters(
    called: Callable[..., int], parameters: Iterable[Parameter], *, foreground: bool
) -> Callable[..., int]:
    """The function with a signature from which typer learns its parameters. foreground: with the
    option of that name.
    """
    own = [_for_typer(each) for each in parameters]
    if foreground:
        own.append(_switch("foreground", _Foreground))
    own.append(_switch("as_json", Json))
    called.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in own}
    return called


def _switch(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation
    )


def _for_typer(parameter: Parameter) -> inspect.Parameter:
    default, shown = parameter.omitted, parameter.shown
    kind: Any = parameter.one
    if parameter.is_many:
        kind = list[kind]
    if default is None:
        kind = kind | None
    if isinstance(shown, Argument):
        info: Any = typer.Argument(metavar=shown.metavar, help=shown.help)
    else:
        info = typer.Option(
            *parameter.flags,
            metavar=shown.metavar,
            help=shown.help,
            min=1 if shown.most else None,
            max=shown.most,
        )
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind, info],
    )
