"""When the snapshots of a mirror were verified last."""

from __future__ import annotations

from mirrord.catalogue.base import Store
from mirrord.core.verification import Verified, VerifyMode

VERIFICATIONS_KEPT = 100  # of each mirror, for each mode
_COLUMNS = "guid, name, at_ns, mode, differences, root"


class Verifications(Store):
    """The table `verification`."""

    def add_verification(self, mirror_id: str, done: Verified) -> None:
        """Record a verification; it replaces the one before of the same snapshot."""
        with self._transaction("VERIFICATION:ADD") as db:
            db.execute(
                f"INSERT OR REPLACE INTO verification (mirror_id, {_COLUMNS}) "  # noqa: S608 - own names
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (mirror_id, *done._replace(mode=done.mode.value)),  # type: ignore[arg-type]
            )
            db.execute(
                "DELETE FROM verification WHERE mirror_id = ? AND mode = ? AND rowid <= (SELECT "
                "rowid FROM verification WHERE mirror_id = ? AND mode = ? ORDER BY rowid DESC "
                "LIMIT 1 OFFSET ?)",
                (mirror_id, done.mode.value) * 2 + (VERIFICATIONS_KEPT,),
            )

    def verifications(self, mirror_id: str) -> list[Verified]:
        """The last one of each snapshot, newest first."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM verification WHERE mirror_id = ? "  # noqa: S608 - own names
            "ORDER BY rowid DESC",
            mirror_id,
        )
        return [Verified(*row)._replace(mode=VerifyMode(row[3])) for row in rows]
