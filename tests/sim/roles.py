"""Which site is the source in a story: as the catalogue says it, else the ends, else the owner."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mirrord.catalogue.store import Catalogue
from mirrord.config.definitions import Definitions
from mirrord.core.errors import Refused
from mirrord.core.model import SITE_NAMES, Definition
from mirrord.engine import direction
from tests.sim.memory import MemoryDriver
from tests.sim.volume import Disk


class Roles:
    """The definitions of a story, each for the present direction."""

    def __init__(self, folder: Path, catalogue: Path, disk: Disk) -> None:
        self.definitions = Definitions(folder, self._source_of)
        self._catalogue, self._disk = catalogue, disk
        #: What the owner remembers.
        self._remembered = SITE_NAMES[0]

    def _source_of(self, mirror_id: str) -> str:
        with closing(Catalogue(self._catalogue)) as catalogue:
            return direction.source_of(catalogue, mirror_id)

    def definition(self, name: str) -> Definition:
        """As `Opener.definition`; the owner answers at once where he is asked."""
        definition = self.definitions.load(name)
        with closing(Catalogue(self._catalogue)) as catalogue:
            if direction.source_of(catalogue, definition.id) in definition.site_names:
                self._remembered = definition.source_site
                return definition
            ends = direction.look_at(definition, lambda end: MemoryDriver(self._disk, end.location))
            try:
                source = direction.find(definition, ends)
            except Refused:
                source = self._remembered
            catalogue.set_direction(definition.id, source or definition.source_site)
        return self.definitions.load(name)

    def adopt(self, definition: Definition) -> None:
        """The owner reverses the roles of the sites."""
        with closing(Catalogue(self._catalogue)) as catalogue:
            catalogue.set_direction(definition.id, definition.destination_site)
