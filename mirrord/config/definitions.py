"""Mirror definitions in `mirrors.d/NAME.toml`: the folder, and changes to its files.

The files do not record which site is currently the source: the caller provides that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mirrord.config import strict
from mirrord.config.members import named
from mirrord.config.reading import parse, parse_both
from mirrord.config.together import check_together, same_id
from mirrord.config.writing import render, with_endpoint, with_policy, with_throttle
from mirrord.core.errors import ConfigError, NotFound, Refused, UsageError
from mirrord.core.model import Definition, Endpoint
from mirrord.core.names import check_mirror_name, did_you_mean
from mirrord.core.relationship import Relationship
from mirrord.system import files


def of_record(
    record: Relationship, pairs: Sequence[tuple[Endpoint, Endpoint]], name: str
) -> Definition:
    """What a relationship record says of a mirror. pairs: its volumes, the source's first."""
    members = named(pairs)
    return Definition(
        name=check_mirror_name(name),
        id=record.mirror_id,
        source=members[0].source,
        destination=members[0].destination,
        members=members if len(members) > 1 else (),
        site_names=(record.sites[0].name, record.sites[1].name),
        source_site=record.source,
    )


class Definitions:
    """The folder of definitions."""

    def __init__(
        self, folder: Path, source_of: Callable[[str], str] = lambda _mirror_id: ""
    ) -> None:
        """source_of: the source site of the mirror with that id; "" when none is recorded, which
        means the first site in the file.
        """
        self.folder = folder
        self._source_of = source_of
        #: By name: texts that are used in place of those of the files.
        self.instead: dict[str, str] = {}
        #: The ids in all files, as of a change of the folder (nanoseconds).
        self._ids: tuple[int, list[tuple[str, str]]] = (0, [])

    def file(self, name: str) -> Path:
        """The path of a mirror's definition, which may not exist."""
        return self.folder / f"{check_mirror_name(name)}.toml"

    def names(self) -> list[str]:
        """The names of all definitions, valid or not."""
        # Not the files that editors create next to an edited file, such as '.#home.toml'.
        found = [name for name in files.names_in(self.folder) if not name.startswith(".")]
        return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))

    def read(self, name: str) -> str:
        """The text of a definition by name; `NotFound` with the closest name otherwise."""
        path = self.file(name)
        try:
            return strict.source_of(path, "the definition")
        except FileNotFoundError:
            if path.is_symlink():
                raise ConfigError(
                    "the definition cannot be read",
                    where=str(path),
                    why=f"it is a link to {path.readlink()}, which does not exist",
                ) from None
            known = self.names()
            hint = f"Known mirrors: {', '.join(known[:8])}."
            if not known:
                hint = f"Create one with 'mirrord create {name} SOURCE DESTINATION'."
            hint += " If its definition was lost, 'mirrord adopt ENDPOINT' rebuilds it."
            raise NotFound(
                f"no mirror is called '{name}'", hint=did_you_mean(name, known, hint)
            ) from None

    def load(self, name: str, source_site: str = "") -> Definition:
        """A definition by name; see `read` and `parse`.

        source_site: the requested direction; "": as recorded. `ConfigError` when the file has no
        such site.
        """
        both = self.both(name)
        first = next(iter(both.values()))
        if not source_site:
            return both.get(self._source_of(first.id), first)
        if source_site not in both:
            raise ConfigError(
                f"the definition has no site '{source_site}'",
                where=str(self.file(name)),
                why=f"its sites are {' and '.join(both)}",
                hint="It was edited in the meantime: run the same command again.",
            )
        return both[source_site]

    def both(self, name: str) -> Mapping[str, Definition]:
        """A definition by name, for both directions: by source site, in the order of the file."""
        text = self.instead.get(name) or self.read(name)
        return parse_both(name, text, str(self.file(name)))

    def all(self) -> list[Definition]:
        """All definitions, checked against each other. `ConfigError` at the first invalid one."""
        found = [self.load_listed(name) for name in self.names()]
        check_together(found)
        return found

    def load_listed(self, name: str) -> Definition:
        """A definition in `names`; `ConfigError` when its file name is not a valid name."""
        try:
            return self.load(name)
        except UsageError as error:
            file = self.folder / f"{name}.toml"
            raise ConfigError(
                error.what,
                where=str(file),
                why=error.why,
                hint="Rename the file, or move it elsewhere.",
            ) from None

    def check_id(self, definition: Definition) -> None:
        """`ConfigError` when another file has the id: what is done by a copy is done to the mirror
        that it was copied from.
        """
        changed_ns = self.folder.stat().st_mtime_ns
        if self._ids[0] != changed_ns:
            self._ids = changed_ns, [(name, self._id_in(name)) for name in self.names()]
        for name, found in self._ids[1]:
            # (A file may have been edited in place since.)
            is_other = name != definition.name and found == definition.id
            if is_other and self._id_in(name) == definition.id:
                raise same_id(name, definition)

    def _id_in(self, name: str) -> str:
        """The id in a file that may be invalid otherwise; "" when it has none."""
        try:
            text = (self.folder / f"{name}.toml").read_text(errors="replace")
        except OSError:
            return ""
        found = re.search(r"""^id\s*=\s*["']([^"']*)""", text, re.MULTILINE)
        return found[1] if found else ""

    def check_free(self, name: str) -> Path:
        """The file for a new definition; `Refused` when the name is taken."""
        path = self.file(name)
        if path.exists():
            raise Refused(
                f"a mirror called '{name}' already exists",
                where=str(path),
                hint=f"Choose another name, or run 'mirrord delete {name}' first.",
            )
        return path

    def add(self, definition: Definition) -> Definition:
        """Write a new definition; `Refused` when the name is taken."""
        path = self.check_free(definition.name)
        check_together([*self.all(), definition])
        text = render(definition)
        parse(definition.name, text, str(path))  # an unreadable definition would stop all mirrors
        files.write_atomic("CREATE:DEFINITION", path, text.encode())
        return definition._replace(file=str(path))

    def set_endpoint(self, name: str, site: str, endpoint: Endpoint) -> Definition:
        """Set the endpoint of a site, preserving every other line and comment."""
        text = with_endpoint(self.read(name), site, endpoint)
        return self._rewrite("CHANGE-SOURCE:DEFINITION", self.load(name), text)

    def set_throttle(self, name: str, rates: str) -> Definition:
        """Set or (with "") remove the rates for the current direction, preserving every other line
        and comment.
        """
        known = self.load(name)
        text = with_throttle(self.read(name), known.source_site, rates)
        return self._rewrite("THROTTLE:DEFINITION", known, text)

    def set_policy(self, name: str, policy: str) -> Definition:
        """Set the policy, preserving every other line and comment."""
        text = with_policy(self.read(name), policy)
        return self._rewrite("MODE:DEFINITION", self.load(name), text)

    def _rewrite(self, op: str, known: Definition, text: str) -> Definition:
        """Replace the text of a definition, if it is valid for the current direction."""
        definition = parse(known.name, text, known.file, known.source_site)
        files.rewrite(op, known.file, text.encode())
        return definition

    def remove(self, name: str) -> None:
        """Remove a definition, if it exists."""
        files.remove_file("DELETE:DEFINITION", self.file(name))
