"""A peer that may only append, and wants to take back what it gave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrord.core.errors import Untrusted
from tests.security.sentences import breaks
from tests.security.world import MIRROR, Backup, Host, deliver, stream_of


@breaks("A1")
@pytest.mark.parametrize("rights", ["receive", "receive and send", "all"])
def test_an_append_only_peer_cannot_delete_or_roll_back_committed_data(
    host: Host, root: Path, rights: str
) -> None:
    allow = [] if rights == "all" else ["--allow", f"receive={root}"]
    allow += ["--allow", f"send={root}"] if rights == "receive and send" else []
    with host.peer(*allow, "--append-only") as peer:
        there = peer.volume(root / "backup/home")
        backup = Backup(root, there)
        attempts: list[Callable[[], object]] = [
            lambda: there.delete_snapshot(backup.one.guid),
            lambda: there.delete_snapshot(backup.two.guid),
            lambda: there.rollback(backup.one.guid, mirror_id=MIRROR, keep_as="lost"),
            lambda: there.rollback(backup.one.guid, mirror_id=MIRROR, keep_as="kept"),
            there.promote,
            there.forget,
        ]
        for attempt in attempts:
            with pytest.raises(Untrusted):
                attempt()
            backup.intact()


@breaks("A2")
def test_an_append_only_peer_cannot_damage_a_backup_by_permitted_calls(
    host: Host, root: Path
) -> None:
    with host.peer("--allow", f"receive={root}", "--append-only") as peer:
        there = peer.volume(root / "backup/home")
        backup = Backup(root, there)
        for transfer in ("t1", "t2", "s1", "unknown"):
            there.discard(transfer)
            backup.intact()
        there.prepare(MIRROR)
        there.prepare(MIRROR, in_place=True)
        there.commit("t1", show=True)  # what was committed long ago
        backup.intact()
        # The same snapshot once more, under the same and another name of the transfer.
        for transfer in ("t1", "t3"):
            deliver(there, stream_of(backup.source, backup.one), backup.one, transfer)
            backup.intact()
            with pytest.raises(Untrusted):
                there.commit(transfer, show=True)
            there.commit(transfer, show=False)
            backup.intact()
        there.commit("t1", show=True)
        backup.intact()
        # Another one by the name of an old one.
        (root / "home/file").write_text("third")
        snapshot = backup.source.take_snapshot("s3")._replace(name="s1")
        data = stream_of(backup.source, snapshot, backup.two)
        deliver(there, data, snapshot, "t4", backup.two)
        there.commit("t4", show=False)
        assert backup.content("s1") == backup.before and backup.content("s2") == backup.after


@breaks("A3")
def test_an_append_only_peer_can_send_an_empty_volume_but_older_snapshots_remain(
    host: Host, root: Path
) -> None:
    """A source that was taken over shows an empty volume; what was there before is there still."""
    with host.peer("--allow", f"receive={root}", "--append-only") as peer:
        there = peer.volume(root / "backup/home")
        backup = Backup(root, there)
        (root / "home/file").unlink()
        backup.add("s3", backup.two, "t3")
        assert list((root / "backup/home/current").iterdir()) == []
        assert backup.content("s1") == backup.before and backup.content("s2") == backup.after
        # And it may throw away what is not committed.
        snapshot = backup.source.take_snapshot("s4")
        deliver(there, stream_of(backup.source, snapshot), snapshot, "t4")
        there.discard("t4")
        assert there.stagings() == []


@breaks("A4")
def test_a_block_volume_is_refused(host: Host, root: Path) -> None:
    with host.peer("--append-only") as peer, pytest.raises(Untrusted, match="only append"):
        peer.open(root / "backup/volume", "block")
