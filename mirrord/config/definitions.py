"""Mirror definitions in `mirrors.d/NAME.toml`: the folder, and changes of its files.

No file says which site is the source at present: whoever makes a `Definitions` knows that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirrord.config.reading import parse, parse_both
from mirrord.config.together import check_together
from mirrord.config.writing import render, with_endpoint, with_throttle
from mirrord.core.errors import ConfigError, NotFound, Refused, UsageError
from mirrord.core.model import Definition, Endpoint
from mirrord.core.names import check_mirror_name, nearest
from mirrord.system import files


def _undecided(_mirror_id: str) -> str:
    return ""


class Definitions:
    """The folder of definitions."""

    def __init__(self, folder: Path, source_of: Callable[[str], str] = _undecided) -> None:
        """source_of: the site that is the source of the mirror with that id, "" where nothing is
        recorded: then it is the first one of the file.
        """
        self.folder = folder
        self._source_of = source_of

    def file(self, name: str) -> Path:
        """Where the definition of a mirror lies, or would lie."""
        return self.folder / f"{check_mirror_name(name)}.toml"

    def names(self) -> list[str]:
        """All that are there, whether right or wrong."""
        # Not what editors put beside a file while it is edited, such as '.#home.toml'.
        found = self.folder.glob("*.toml")
        return sorted(path.stem for path in found if not path.name.startswith("."))

    def read(self, name: str) -> str:
        """The text of one by its name; `NotFound` with the nearest name when there is none."""
        path = self.file(name)
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if path.is_symlink():
                raise ConfigError(
                    "the definition cannot be read",
                    where=str(path),
                    why=f"it is a link to {path.readlink()}, which does not exist",
                ) from None
            near = nearest(name, self.names())
            known = ", ".join(self.names()[:8])
            if near:
                hint = f"Did you mean '{near[0]}'?"
            elif known:
                hint = f"Known mirrors: {known}."
            else:
                hint = "Create one with 'mirrord create NAME SOURCE DESTINATION'."
            raise NotFound(f"no mirror is called '{name}'", hint=hint) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "the definition cannot be read", where=str(path), why=str(error)
            ) from error

    def load(self, name: str, source_site: str = "") -> Definition:
        """One by its name; see `read` and `parse`.

        source_site: the direction that is wanted; "": as it is recorded. `ConfigError` when the
        file does not name that site.
        """
        both = parse_both(name, self.read(name), str(self.file(name)))
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

    def both(self, name: str) -> list[Definition]:
        """One by its name, for either direction."""
        return list(parse_both(name, self.read(name), str(self.file(name))).values())

    def all(self) -> list[Definition]:
        """All definitions, checked against each other. `ConfigError` at the first wrong one."""
        found = [self.load_listed(name) for name in self.names()]
        check_together(found)
        return found

    def load_listed(self, name: str) -> Definition:
        """One of `names`: a file that nobody could ask for by its name is wrong itself."""
        try:
            return self.load(name)
        except UsageError as error:
            file = self.folder / f"{name}.toml"
            raise ConfigError(
                error.what, where=str(file), hint="Rename the file, or move it elsewhere."
            ) from None

    def check_free(self, name: str) -> Path:
        """The file for a new definition; `Refused` when the name is taken."""
        path = self.file(name)
        if path.exists():
            raise Refused(
                f"a mirror called '{name}' exists already",
                where=str(path),
                hint=f"Choose another name, or run 'mirrord delete {name}' first.",
            )
        return path

    def add(self, definition: Definition) -> Definition:
        """Write a new definition; `Refused` when the name is taken."""
        path = self.check_free(definition.name)
        check_together([*self.all(), definition])
        text = render(definition)
        parse(definition.name, text, str(path))  # what cannot be read back would stop all mirrors
        files.write_atomic("CREATE:DEFINITION", path, text.encode())
        return definition._replace(file=str(path))

    def set_endpoint(self, name: str, site: str, endpoint: Endpoint) -> Definition:
        """Set the endpoint of a site, keeping every other line and comment as it is."""
        path = self.file(name)
        known = self.load(name)
        text = with_endpoint(self.read(name), site, endpoint)
        definition = parse(name, text, str(path), known.source_site)
        files.write_atomic("CHANGE-SOURCE:DEFINITION", path, text.encode())
        return definition

    def set_throttle(self, name: str, rates: str) -> Definition:
        """Set or (with "") remove the rates that hold in the present direction, keeping every other
        line and comment as it is.
        """
        path = self.file(name)
        known = self.load(name)
        text = with_throttle(self.read(name), known.source_site, rates)
        definition = parse(name, text, str(path), known.source_site)
        files.write_atomic("THROTTLE:DEFINITION", path, text.encode())
        return definition

    def remove(self, name: str) -> None:
        """Remove a definition, if it is there."""
        files.remove_file("DELETE:DEFINITION", self.file(name))
