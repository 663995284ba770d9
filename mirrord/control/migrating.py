"""`mirrord config migrate`: rewrites definitions from before sites were introduced."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.config.migrate import Migrated, migrated
from mirrord.core.errors import Refused
from mirrord.core.results import Result
from mirrord.system import files
from mirrord.system.explain import explained
from mirrord.system.paths import Paths

_COPY = ".before-migrate"


def migrate(paths: Paths, names: list[str], *, dry_run: bool) -> Result:
    """Rewrite these definitions, or all; each file is kept beside as `NAME.toml.before-migrate`.

    Nothing is written unless every one of them can be. dry_run: only show what would change.
    """
    definitions = Definitions(paths.mirrors)
    with explained():
        found = {name: definitions.read(name) for name in names or definitions.names()}
        old = {
            name: one
            for name, text in found.items()
            if (one := migrated(name, text, str(definitions.file(name)))) is not None
        }
        if dry_run:
            text = "".join(one.diff() for one in old.values())
            data = {"migrated": list(old), "diff": text}
            return Result("planned", text.rstrip("\n") or _nothing(found), data)
        for one in old.values():
            _check_copy(one)
        _record(paths, list(old.values()))
        for one in old.values():
            _write(one)
    lines = [f"'{name}' is migrated: {one.definition.file}." for name, one in old.items()]
    if lines:
        lines.append(f"The original files are kept as NAME.toml{_COPY}.")
    status = "done" if old else "already_migrated"
    return Result(status, "\n".join(lines) or _nothing(found), {"migrated": list(old)})


def _nothing(found: dict[str, str]) -> str:
    return "Nothing to migrate: every definition names its sites." if found else "No definitions."


def _copy_of(one: Migrated) -> Path:
    return Path(one.definition.file + _COPY)


def _check_copy(one: Migrated) -> None:
    copy = _copy_of(one)
    if copy.exists() and copy.read_bytes() != Path(one.definition.file).read_bytes():
        raise Refused(
            "an earlier copy of the definition would be overwritten",
            where=str(copy),
            hint="Move it away, then run the same command again.",
        )


def _record(paths: Paths, found: list[Migrated]) -> None:
    """Their old form says which end is the source now: the first site."""
    if not found or not paths.catalogue.exists():
        return
    with closing(Catalogue(paths.catalogue)) as catalogue:
        for one in found:
            catalogue.set_direction(one.definition.id, one.definition.source_site)


def _write(one: Migrated) -> None:
    file = Path(one.definition.file)
    files.write_atomic("MIGRATE:COPY", _copy_of(one), file.read_bytes(), like=file)
    files.rewrite("MIGRATE:DEFINITION", file, one.after.encode())
