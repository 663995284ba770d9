"""The options of all commands that read traces."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

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


def _foreign(help: str, metavar: str | None = None, *flags: str) -> Any:
    return typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=_PANEL)


def _filter(help: str, metavar: str) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=_FILTERS)


def _options(
    *,
    format: Annotated[
        str | None, _foreign("Format of the source; default: detected from its content.", "FORMAT")
    ] = None,
    time_unit: Annotated[str | None, _foreign("Unit of times: s, ms, us, 100ns or ns.")] = None,
    addr_unit: Annotated[
        str | None, _foreign("Unit of offsets: byte, sector, 4k or a number of bytes.")
    ] = None,
    size_unit: Annotated[str | None, _foreign("Unit of lengths: as for --addr-unit.")] = None,
    write_flag: Annotated[
        str | None, _foreign("The value that marks writes; 'all': each record of a CSV is a write.")
    ] = None,
    columns: Annotated[
        str | None, _foreign("Columns of a CSV: time=0,op=3,offset=4,length=5,volume=1+2.", "MAP")
    ] = None,
    only: Annotated[
        str | None,
        _foreign("blktrace events: Q queued (default), C completed, D issued.", "ACTION"),
    ] = None,
    partial: Annotated[
        bool, _foreign("Accept a source that is truncated within a record.", None, "--partial")
    ] = False,
    skip_bad: Annotated[bool, _foreign("Skip malformed records.", None, "--skip-bad")] = False,
    scratch: Annotated[str | None, _foreign("Folder for temporary files.", "FOLDER")] = None,
    align_shift: Annotated[
        str, _filter("Added to each offset; 'auto': the best 4 KiB alignment.", "BYTES")
    ] = "0",
    dedup: Annotated[
        str | None, _filter("Drop block writes repeated within this time, e.g. 1s.", "TIME")
    ] = None,
    volume: Annotated[str | None, _filter("Read only this volume.", "NAME")] = None,
) -> ReadOptions:
    """The options for reading a trace, as they are given. `UsageError`."""
    return ReadOptions(
        format=format,
        time_unit=time_unit,
        addr_unit=addr_unit,
        size_unit=size_unit,
        write_flag=write_flag,
        columns=columns,
        only=only,
        align_shift="auto" if align_shift == "auto" else _shift(align_shift),
        dedup_s=0.0 if dedup is None else parse_duration(dedup),
        volume=volume,
        partial=partial,
        skip_bad=skip_bad,
        scratch=scratch,
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
    added = [*inspect.signature(_options, eval_str=True).parameters.values()]
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
