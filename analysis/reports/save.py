"""Saving a report as files: all of them or, on an error, none."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mirrord.analysis.reports.html import page
from mirrord.analysis.reports.images import pictures
from mirrord.analysis.reports.plots import Report, Section, Table
from mirrord.analysis.reports.tables import csv_of, plain_of
from mirrord.core.errors import IoFailed, MirrordError, NoSpace, PermissionMissing
from mirrord.system import files


def check(folder: Path) -> None:
    """Check, before the work, whether a report could be written there. Nothing is created.

    `IoFailed` if it is not a folder, `PermissionMissing` without permission to write;
    `ModuleNotFoundError` when a package for drawing is not installed.
    """
    for package in ("plotly", "matplotlib", "PIL"):
        importlib.import_module(package)
    # (`exists` is False below a file, too, and where it cannot be told: the nearest existing
    # parent decides.)
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    code = 0
    if not there.is_dir():
        code = errno.ENOTDIR
    elif not os.access(there, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
    if code:
        raise _failed(OSError(code, os.strerror(code), str(there)), folder)


def save(report: Report, folder: Path, *, version: str) -> list[str]:
    """Write the report's files into `folder` (made if need be); returns their names.

    `<kind>.html`, `<kind>.json`, `<kind>-details.json`, `<kind>.txt`, and of each plot and table
    `.png`, `.svg`, `.csv`. They are written to a temporary folder and renamed when complete:
    `NoSpace`, `PermissionMissing` or `IoFailed` leave existing files unchanged.
    """
    beside = folder / f".{report.kind}.new"
    names: list[str] = []
    ours = not folder.exists()
    try:
        files.make_directory("REPORT:FOLDER", folder)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name, data in _rendered(report, version):
            with (beside / name).open("wb") as out:
                out.write(data)
            names.append(name)
        files.sync_filesystem("REPORT:SYNC", beside)
        for name in names:
            (beside / name).replace(folder / name)
        files.sync_directory(folder)
        ours = False
    except OSError as error:
        raise _failed(error, folder) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if ours:
            with suppress(OSError):
                folder.rmdir()
    return names


def _rendered(report: Report, version: str) -> Iterator[tuple[str, bytes]]:
    made_by = {"provenance": report.provenance} if report.provenance else {}
    yield f"{report.kind}.json", _json({**report.data, **made_by})
    if report.details:
        yield f"{report.kind}-details.json", _json({**report.details, **made_by})
    yield f"{report.kind}.txt", (text(report) + "\n").encode()
    yield f"{report.kind}.html", page(report, version=version).encode()
    for key, table in _tables(report):
        yield f"{key}.csv", csv_of(table).encode()
    for plot in report.plots():
        for kind, data in pictures(plot).items():
            yield f"{plot.key}.{kind}", data


def _tables(report: Report) -> Iterator[tuple[str, Table]]:
    for section in report.sections:
        if section.table is not None:
            yield section.key, section.table
        for plot in section.plots:
            yield plot.key, plot.table


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def text(report: Report) -> str:
    """The report as plain text, with its tables."""
    parts = [report.title, "=" * len(report.title), ""]
    parts += [f"- {line}" for line in report.conclusions]
    parts += [f"- assumed {line}" for line in report.assumptions]
    parts += [f"! {line}" for line in report.warnings]
    for section in report.sections:
        parts += ["", section.title, "-" * len(section.title)]
        parts += list(section.text)
        parts += _section(section)
    parts += ["", "How it was computed", "-------------------", *report.method]
    return "\n".join(parts)


def _section(section: Section) -> list[str]:
    made = ["", plain_of(section.table)] if section.table is not None else []
    for plot in section.plots:
        made += ["", f"{plot.title}. {plot.caption}"]
        if len(plot.table.rows) <= 60:
            made += ["", plain_of(plot.table)]
        else:
            made += [f"({len(plot.table.rows)} rows: {plot.key}.csv)"]
    return made


def _failed(error: OSError, folder: Path) -> MirrordError:
    why = error.strerror or str(error)
    where = str(error.filename or folder)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(
            "no space for the report",
            where=str(folder),
            why=why,
            hint="Nothing was left there. Free some space, or choose another folder with --out.",
        )
    kind = (
        PermissionMissing if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else IoFailed
    )
    return kind(
        "the report cannot be written",
        where=where,
        why=why,
        hint="Choose another folder with --out.",
    )
