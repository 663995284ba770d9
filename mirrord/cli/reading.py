"""The options of all commands that read traces."""

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

_PANEL = "Reading foreign traces"
_FILTERS = "Filters"


def _stored(target: Path) -> Path:
    from mirrord.traces.writing import check_stored

    need_analysis()
    return check_stored(target)


#: Where a stored trace is written; checked before the work, which may take hours.
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
    """An option for reading a trace; its flag is derived from its name."""

    name: str
    help: str
    metavar: str | None = None
    kind: Any = str | None
    default: Any = None
    panel: str = _PANEL


_OPTIONS = (
    _Option("format", "Format of the source; default: detected from its content.", "FORMAT"),
    _Option("time_unit", "Unit of times: s, ms, us, 100ns or ns."),
    _Option("addr_unit", "Unit of offsets: byte, sector, 4k or a number of bytes."),
    _Option("size_unit", "Unit of lengths: as for --addr-unit."),
    _Option("write_flag", "The value that marks writes; 'all': each record of a CSV is a write."),
    _Option("columns", "Columns of a CSV: time=0,op=3,offset=4,length=5,volume=1+2.", "MAP"),
    _Option("only", "blktrace events: Q queued (default), C completed, D issued.", "ACTION"),
    _Option("partial", "Accept a source that is truncated within a record.", None, bool, False),
    _Option("skip_bad", "Skip malformed records.", None, bool, False),
    _Option("scratch", "Folder for temporary files.", "FOLDER"),
    _Option(
        "align_shift",
        "Added to each offset; 'auto': the best 4 KiB alignment.",
        "BYTES",
        str,
        "0",
        _FILTERS,
    ),
    _Option(
        "dedup", "Drop block writes repeated within this time, e.g. 1s.", "TIME", panel=_FILTERS
    ),
    _Option("volume", "Read only this volume.", "NAME", panel=_FILTERS),
)


def _parameter(option: _Option) -> inspect.Parameter:
    flag = "--" + option.name.replace("_", "-")
    info = typer.Option(
        flag, metavar=option.metavar, help=option.help, rich_help_panel=option.panel
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[option.kind, info],
    )


def _options(align_shift: str, dedup: str | None, **given: Any) -> ReadOptions:
    """The given options, checked. `UsageError`."""
    return ReadOptions(
        align_shift="auto" if align_shift == "auto" else _shift(align_shift),
        dedup_s=0.0 if dedup is None else parse_duration(dedup),
        **given,
    )


def _shift(text: str) -> int:
    """Bytes; may be negative."""
    value = -parse_size(text[1:]) if text.startswith("-") else parse_size(text)
    if abs(value) > 1 << 40:
        raise UsageError(f"a shift of {text} bytes is out of range")
    return value


def reads_traces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for reading to a command, which gets them as `options: ReadOptions`."""
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
