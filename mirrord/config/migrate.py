"""Rewrites definitions of the format without sites, preserving every comment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mirrord.config import strict
from mirrord.config.reading import OLD_FORM, is_old, parse
from mirrord.core.errors import ConfigError
from mirrord.core.model import SITE_NAMES, Definition

_FIRST, _SECOND = SITE_NAMES
#: The new place of a key: its site, and its name there.
_MOVED = {
    "source": (_FIRST, "endpoint"),
    "keep_source": (_FIRST, "keep"),
    "snapshots": (_FIRST, "snapshots"),
    "hooks": (_FIRST, "hooks"),
    "destination": (_SECOND, "endpoint"),
    "keep_destination": (_SECOND, "keep"),
}


class Migrated(NamedTuple):
    """A definition in its new format. before, after: the text of its file."""

    definition: Definition
    before: str
    after: str

    def diff(self) -> str:
        """What changes, as `diff -u` shows it."""
        file = self.definition.file
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, file, f"{file} (migrated)"))


def migrated(name: str, text: str, file: str) -> Migrated | None:
    """The definition in `text` with sites; None when it already has them. The source becomes the
    first site. `ConfigError` when the text is a definition of neither format.
    """
    raw = strict.loads(text, file)
    if not is_old(raw):
        parse(name, text, file)
        return None
    values = strict.read(text, file, OLD_FORM)
    for key in ("id", "source", "destination"):
        if key not in values:
            raise ConfigError(f"the key '{key}' is missing", where=file)
    after = _rewritten(text, file)
    if strict.loads(after, file) != _with_sites(raw):
        raise ConfigError(
            "the definition cannot be rewritten",
            where=file,
            hint="Write it by hand: a new one as 'mirrord create' writes it is in docs/config.md.",
        )
    return Migrated(parse(name, after, file), text, after)


def _with_sites(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the new format."""
    sites: dict[str, dict[str, Any]] = {name: {} for name in SITE_NAMES}
    for key, (site, name) in _MOVED.items():
        if key in raw:
            sites[site][name] = raw[key]
    return {**{key: raw[key] for key in raw if key not in _MOVED}, "site": sites}


class _Piece(NamedTuple):
    """A part of the file's text: one key with its value, a comment, or blank lines."""

    key: str
    text: str

    @property
    def blank(self) -> bool:
        return not self.text.strip()


def _pieces(text: str) -> Iterator[_Piece]:
    """The pieces of the text; joined, they are the text."""
    import tomlkit

    for key, item in tomlkit.parse(text).body:
        alone = tomlkit.document()
        alone.body.append((key, item))
        yield _Piece(key.key if key is not None else "", alone.as_string())


def _rewritten(text: str, file: str) -> str:
    from tomlkit.exceptions import TOMLKitError

    try:
        pieces = list(_pieces(text))
    except TOMLKitError as error:
        raise ConfigError("the file cannot be read", where=file, why=str(error)) from None
    top: list[_Piece] = []
    sites: dict[str, list[str]] = {name: [f"[site.{name}]\n"] for name in SITE_NAMES}
    for piece in pieces:
        if piece.key in _MOVED:
            site, name = _MOVED[piece.key]
            is_table = piece.text.lstrip().startswith("[")
            sites[site] += ["\n"] * is_table + [one.text for one in _comments_at_the_end(top)]
            sites[site].append(_renamed(piece, site, name))
        elif not (piece.blank and (not top or top[-1].blank)):
            top.append(piece)
    parts = ["".join(one.text for one in top), *map("".join, sites.values())]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _comments_at_the_end(pieces: list[_Piece]) -> list[_Piece]:
    """Remove and return the comment lines just above what comes next."""
    found: list[_Piece] = []
    while pieces and not pieces[-1].key and not pieces[-1].blank:
        found.insert(0, pieces.pop())
    return found


def _renamed(piece: _Piece, site: str, name: str) -> str:
    """A key and its value as in the table of a site."""
    word = rf"""(?P<quote>["']?){piece.key}(?P=quote)"""
    text = piece.text if piece.text.endswith("\n") else piece.text + "\n"
    table = re.match(rf"\s*\[\s*{word}\s*\]", text)
    if table:
        return f"[site.{site}.{name}]{text[table.end() :]}"
    return re.sub(rf"^(\s*){word}", rf"\g<1>{name}", text, count=1)
