"""A connection that is cut anywhere: the transfer goes on by itself, and little is sent twice."""

from __future__ import annotations

import pytest

from mirrord.link.exchange import WINDOW_BYTES
from tests.support.remote import MIB, Remote, content

#: What a cut may cost: a checkpoint's distance, and what was under way.
RESENT_MAX = 16 * MIB + WINDOW_BYTES

#: Offsets in what the client says: in SSH's banner, its key exchange, the first call, a frame's
#: header, data near the start, between checkpoints, near the end.
OFFSETS = [10, 700, 6_000, 9_001, 100_003, 3 * MIB + 17, 20 * MIB + 1, 40 * MIB + 333, 47 * MIB]


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_update_goes_on_by_itself(site: Remote, offset: int) -> None:
    source, copy = site.volume(), site.folder / "copy"
    site.create(f"block:{source}", f"block://dr{copy}")
    site.proxy.cut_at(offset)
    done = site.service.initialize("home")
    assert site.proxy.cuts == 1 and site.proxy.connections == 2
    assert content(copy) == content(source)
    assert site.proxy.passed["up"] - 49 * MIB < RESENT_MAX
    assert done.data["stream_bytes"] < 49 * MIB + RESENT_MAX
