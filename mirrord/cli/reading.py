"""The options with which a command reads traces, for every command that does."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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
            "traces need Python packages that are not installed", why=", ".join(missing),
            hint="Install them: pip install 'mirrord[analysis]'.",
        )  # fmt: skip


def _options(
    format: Annotated[str | None, typer.Option(
        "--format", metavar="FORMAT", help="What it is; else told by content.",
        rich_help_panel=_PANEL)] = None,
    time_unit: Annotated[str | None, typer.Option(
        "--time-unit", help="s, ms, us, 100ns or ns.", rich_help_panel=_PANEL)] = None,
    addr_unit: Annotated[str | None, typer.Option(
        "--addr-unit", help="Of offsets: byte, sector, 4k or a number of bytes.",
        rich_help_panel=_PANEL)] = None,
    size_unit: Annotated[str | None, typer.Option(
        "--size-unit", help="Of lengths, likewise.", rich_help_panel=_PANEL)] = None,
    write_flag: Annotated[str | None, typer.Option(
        "--write-flag", help="What says write; 'all': every record of a CSV does.",
        rich_help_panel=_PANEL)] = None,
    columns: Annotated[str | None, typer.Option(
        "--columns", metavar="MAP", help="Of any CSV: time=0,op=3,offset=4,length=5,volume=1+2.",
        rich_help_panel=_PANEL)] = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="ACTION", help="Of blktrace: Q queued (as it is), C completed, D issued.",
        rich_help_panel=_PANEL)] = None,
    partial: Annotated[bool, typer.Option(
        "--partial", help="Take a source that is cut off in a record.",
        rich_help_panel=_PANEL)] = False,
    skip_bad: Annotated[bool, typer.Option(
        "--skip-bad", help="Leave out records that make no sense.",
        rich_help_panel=_PANEL)] = False,
    scratch: Annotated[str | None, typer.Option(
        "--scratch", metavar="FOLDER", help="For what does not fit into memory.",
        rich_help_panel=_PANEL)] = None,
    align_shift: Annotated[str, typer.Option(
        "--align-shift", metavar="BYTES", help="Added to each offset; 'auto': the best of 4 KiB.",
        rich_help_panel=_FILTERS)] = "0",
    dedup: Annotated[str | None, typer.Option(
        "--dedup", metavar="TIME", help="Drop block writes that repeat within it, as 1s.",
        rich_help_panel=_FILTERS)] = None,
    volume: Annotated[str | None, typer.Option(
        "--volume", metavar="NAME", help="Only this one.", rich_help_panel=_FILTERS)] = None,
) -> ReadOptions:  # fmt: skip
    """What was said, checked. `UsageError`."""
    return ReadOptions(
        format=format, time_unit=time_unit, addr_unit=addr_unit, size_unit=size_unit,
        write_flag=write_flag, columns=columns, only=only, partial=partial, skip_bad=skip_bad,
        scratch=scratch, align_shift="auto" if align_shift == "auto" else _shift(align_shift),
        dedup_s=0.0 if dedup is None else parse_duration(dedup), volume=volume,
    )  # fmt: skip


def _shift(text: str) -> int:
    """Bytes, also negative ones."""
    value = -parse_size(text[1:]) if text.startswith("-") else parse_size(text)
    if abs(value) > 1 << 40:
        raise UsageError(f"a shift of {text} bytes cannot be meant")
    return value


def reads_traces(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command all options of reading; it takes them as `options: ReadOptions`."""
    hints = typing.get_type_hints(_options, include_extras=True)
    own = inspect.signature(command, eval_str=True).parameters
    added = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(_options).parameters.values()
    ]
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
