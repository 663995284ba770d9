"""The options with which a command reads traces, for every command that does."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mirrord.core.errors import Unsupported, UsageError
from mirrord.core.units import parse_duration, parse_size
from mirrord.traces.options import ReadOptions

_PANEL = "How a foreign trace is read"
_FILTERS = "What of a trace is taken"


def _stored(target: Path) -> Path:
    from mirrord.traces.writing import check_stored

    need_analysis()
    return check_stored(target)


#: Where a stored trace is written; told before the work, which may take hours.
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The stored trace (.parquet).", callback=_stored
    ),
]


def need_analysis() -> None:
    """`Unsupported` when the Python packages for traces are not installed."""
    missing = [name for name in ("numpy", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            "traces need Python packages that are not installed",
            why=", ".join(missing),
            hint="Install them: pip install 'mirrord[analysis]'.",
        )


class _Option(NamedTuple):
    """An option with which a trace is read: its flag follows from its name."""

    name: str
    help: str
    metavar: str | None = None
    kind: Any = str | None
    default: Any = None
    panel: str = _PANEL


_OPTIONS = (
    _Option("format", "What it is; else told by content.", "FORMAT"),
    _Option("time_unit", "s, ms, us, 100ns or ns."),
    _Option("addr_unit", "Of offsets: byte, sector, 4k or a number of bytes."),
    _Option("size_unit", "Of lengths, likewise."),
    _Option("write_flag", "What says write; 'all': every record of a CSV does."),
    _Option("columns", "Of any CSV: time=0,op=3,offset=4,length=5,volume=1+2.", "MAP"),
    _Option("only", "Of blktrace: Q queued (as it is), C completed, D issued.", "ACTION"),
    _Option("partial", "Take a source that is cut off in a record.", None, bool, False),
    _Option("skip_bad", "Leave out malformed records.", None, bool, False),
    _Option("scratch", "For what does not fit into memory.", "FOLDER"),
    _Option(
        "align_shift",
        "Added to each offset; 'auto': the best of 4 KiB.",
        "BYTES",
        str,
        "0",
        _FILTERS,
    ),
    _Option("dedup", "Drop block writes that repeat within it, as 1s.", "TIME", panel=_FILTERS),
    _Option("volume", "Only this one.", "NAME", panel=_FILTERS),
)


def _parameter(option: _Option) -> inspect.Parameter:
    flag = "--" + option.name.replace("_", "-")
    said = typer.Option(
        flag, metavar=option.metavar, help=option.help, rich_help_panel=option.panel
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[option.kind, said],
    )


def _options(align_shift: str, dedup: str | None, **given: Any) -> ReadOptions:
    """What was said, checked. `UsageError`."""
    return ReadOptions(
        align_shift="auto" if align_shift == "auto" else _shift(align_shift),
        dedup_s=0.0 if dedup is None else parse_duration(dedup),
        **given,
    )


def _shift(text: str) -> int:
    """Bytes, also negative ones."""
    value = -parse_size(text[1:]) if text.startswith("-") else parse_size(text)
    if abs(value) > 1 << 40:
        raise UsageError(f"a shift of {text} bytes cannot be meant")
    return value


def reads_traces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options of reading; it takes them as `options: ReadOptions`."""
    own = inspect.signature(command, eval_str=True).parameters
    added = [_parameter(option) for option in _OPTIONS]
    kept = [each for each in own.values() if each.name != "options"]

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        need_analysis()
        options = _options(**{each.name: given.pop(each.name) for each in added})
        from mirrord.traces.reading import refuse_foreign

        named = [given[each] for each in ("traces", "sources", "trace", "source") if each in given]
        for each in named:
            refuse_foreign([each] if isinstance(each, str) else each, options)
        return command(**given, options=options)

    signature = inspect.Signature(
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept] + added
    )
    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return called
