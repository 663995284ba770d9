"""A user's link that leads to a volume names the volume, whether it is live or a view now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mirrord.core.model import Role
from mirrord.drivers.btrfs.driver import BtrfsDriver
from tests.btrfs.pair import MIRROR, Pair


def linked(pair: Pair, target: Path) -> Path:
    """A link to a link to the target: one relative, one absolute."""
    inner = pair.home.with_name("inner")
    inner.symlink_to(target)
    outer = pair.home.with_name("outer")
    outer.symlink_to("inner")
    return outer


def test_a_volume_reached_by_a_link_is_set_aside_and_made_live_again(pair: Pair) -> None:
    base = pair.initialize()
    by_link = replace(pair, home=linked(pair, pair.home))
    (pair.home / "more").write_text("kept")
    kept = by_link.source.rollback(base.guid, mirror_id=MIRROR, keep_as="aside")
    facts = by_link.source.facts()
    assert (facts.role, facts.shown, facts.view) == (Role.MIRROR, base.guid, str(pair.home))
    assert kept == "aside"
    by_link.source.promote()
    assert by_link.source.facts().role is Role.LIVE
    assert pair.source.facts() == by_link.source.facts()._replace(location=str(pair.home))


def test_a_link_to_a_view_is_the_source_of_what_that_shows(pair: Pair) -> None:
    first = pair.initialize()
    further = BtrfsDriver(str(linked(pair, pair.view)))
    assert (further.facts().role, further.facts().shown) == (Role.MIRROR, first.guid)
    (pair.home / "more").write_text("kept")
    second = pair.update(first, "second")
    assert (further.facts().role, further.facts().shown) == (Role.MIRROR, second.guid)


def test_a_link_that_leads_nowhere_is_no_volume(pair: Pair) -> None:
    link = pair.home.with_name("inner")
    link.symlink_to("missing")
    assert BtrfsDriver(str(link)).facts().role is Role.ABSENT
