"""What `zpool status` says of a pool, as OpenZFS 2.1 to 2.3 print it."""

from __future__ import annotations

import time

import pytest

from mirrord.core.verification import PoolState
from mirrord.drivers.zfs.verify import pool

SAID = """\
  pool: tank
 state: {state}
{scan}config:

\tNAME        STATE     READ WRITE CKSUM
\ttank        ONLINE       0     0     0
\t  sda       ONLINE       0     0     0

errors: {errors}
"""
DONE = "scrub repaired 12K in 01:12:40 with 2 errors on Sun Nov 22 01:36:41 2026"
AT_S = int(time.mktime((2026, 11, 22, 1, 36, 41, 0, 0, -1)))


@pytest.mark.parametrize(
    ("scan", "errors", "found"),
    [
        ("", "No known data errors", PoolState("tank", "ONLINE", "", None, None, 0)),
        (DONE, "3 data errors, use '-v' for a list", PoolState("tank", "ONLINE", DONE, AT_S, 2, 3)),
        (
            "scrub in progress since Sun Nov 22 01:36:41 2026",
            "List of errors unavailable (insufficient privileges)",
            PoolState("tank", "ONLINE", "scrub in progress since Sun Nov 22 01:36:41 2026"),
        ),
        (
            "resilvered 1.2G in 00:01:00 with 0 errors on Sun Nov 22 01:36:41 2026",
            "No known data errors",
            PoolState(
                "tank",
                "ONLINE",
                "resilvered 1.2G in 00:01:00 with 0 errors on Sun Nov 22 01:36:41 2026",
                data_errors=0,
            ),
        ),
    ],
)
def test_the_state_is_read(scan: str, errors: str, found: PoolState) -> None:
    line = f"  scan: {scan}\n" if scan else ""
    assert pool.parse("tank", SAID.format(state="ONLINE", scan=line, errors=errors)) == found
