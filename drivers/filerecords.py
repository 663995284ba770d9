"""The pins and relationship records of a volume, for drivers that store them in files."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from pathlib import Path

from mirrord.core.relationship import Relationship
from mirrord.drivers import pinfiles, pins, relationfiles
from mirrord.drivers.contract import Volume
from mirrord.drivers.refusals import not_a_mirror


class FileRecords(Volume):
    """Pins and relationship records in `pins/` and `relationships/` of one folder."""

    @abc.abstractmethod
    def _records(self) -> Path | None:
        """That folder; None when there is no volume."""

    @abc.abstractmethod
    def _keep(self, work: Callable[[], None]) -> None:
        """Run `work`, which writes there; its failure is raised as a `MirrordError`."""

    def pin(self, mirror_id: str, guids: Sequence[str]) -> None:
        """See `Volume.pin`."""
        folder, words = self._records(), (self._op("PIN"), mirror_id, guids, str(self))
        if folder is not None:
            self._keep(lambda: pinfiles.pin(folder / pinfiles.NAME, *words))

    def _demand_unpinned(self, guid: str, name: str) -> None:
        folder = self._records()
        if folder is not None:
            pins.demand_free(pinfiles.load(folder / pinfiles.NAME), [guid], name, str(self))

    def relationships(self) -> dict[str, Relationship | None]:
        """See `Volume.relationships`."""
        folder = self._records()
        return relationfiles.read(folder / relationfiles.NAME) if folder is not None else {}

    def _relate(self, record: Relationship) -> None:
        folder = self._records()
        if folder is None:
            raise not_a_mirror(str(self))
        self._keep(
            lambda: relationfiles.write(folder / relationfiles.NAME, self._op("RELATE"), record)
        )

    def _unrelate(self, mirror_id: str) -> None:
        folder = self._records()
        if folder is not None:
            self._keep(
                lambda: relationfiles.remove(
                    folder / relationfiles.NAME, self._op("UNRELATE"), mirror_id
                )
            )

    def _op(self, what: str) -> str:
        return f"{self.kind.upper()}:{what}"
