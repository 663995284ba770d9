"""Two mirrors that name one image: what is done with one of them does nothing to the other."""

from __future__ import annotations

from pathlib import Path

from tests.live.command import Mirror, qemu_io


def test_the_other_mirror_goes_on(mirror: Mirror, tmp_path: Path) -> None:
    home, ends = mirror.home, (mirror.source, mirror.destination)
    spare = tmp_path / "c/spare.img"
    spare.parent.mkdir()
    home.run("create", "two", mirror.ends[0], f"image:{spare}")  # the image has no records yet
    mirror.initialize("--policy", "sync")
    home.run("serve", "db")
    before = [(end.pid, (end.store / "end.json").read_bytes()) for end in ends]
    for verb in ("initialize", "serve", "unserve", "release"):
        assert "another mirror" in home.refused(verb, "two")
        assert [(end.pid, (end.store / "end.json").read_bytes()) for end in ends] == before
    said = home.run("delete", "two")
    assert f"{mirror.ends[0]} belongs to the mirror {home.status()['id']}" in said
    assert [(end.pid, (end.store / "end.json").read_bytes()) for end in ends] == before
    qemu_io(home.uri(), "write -P 1 0 64k")
    mirror.assert_equal()
