"""`verify_schedule` in a real daemon."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from mirrord.core.units import parse_size
from tests.service.conftest import Served
from tests.support.service import until
from tests.support.world import NAME


def verified(served: Served) -> int:
    """When, in ns; 0: never."""
    found = served.row()["verified"]
    return found["at_ns"] if found else 0


def damage(served: Served) -> None:
    """Change each block of data of the destination."""
    place = Path(str(served.lab.destination()).removeprefix("block:"))
    for file in place.glob("data*"):
        data = bytearray(file.read_bytes())
        data[4096 - 1 :: 4096] = bytes(byte ^ 1 for byte in data[4096 - 1 :: 4096])
        file.write_bytes(data)


def test_a_schedule_verifies_and_the_status_shows_the_next_time(served: Served) -> None:
    served.initialized()
    served.define('verify_schedule = "every 1s"', 'verify_mode = "sample 50 %"')
    until(lambda: verified(served))
    first_ns = verified(served)
    until(lambda: verified(served) > first_ns)
    row = served.row()
    assert row["verified"]["mode"] == "sample" and not row["verified"]["differences"]
    assert 0 < row["next_verify_ns"] < time.time_ns() + 2 * 10**9
    assert row["next_ns"] is None
    text = served.cli("status", NAME).stdout
    [line] = [line for line in text.splitlines() if line.startswith("  verified ")]
    assert "ago, sample: " in line and "no difference in the sample; next 20" in line
    assert served.alarms() == {}
    served.redefine('verify_schedule = "every 1s"\nverify_mode = "sample 50 %"', "")
    until(lambda: served.row()["next_verify_ns"] is None)
    until(lambda: served.row()["activity"] == "idle")  # (One may be under way.)
    last_ns = verified(served)
    time.sleep(2.5)
    assert verified(served) <= last_ns + 10**9


def test_what_differs_raises_the_alarm_and_a_repaired_copy_clears_it(served: Served) -> None:
    served.initialized()
    damage(served)
    served.define('verify_schedule = "every 1s"')
    until(lambda: served.alarms().get("verify") == "error")
    assert "differ" in str(served.row()["problems"])
    assert "error" in served.daemon.text() and "unreadable" in served.daemon.text()
    damage(served)
    until(lambda: served.alarms() == {})


def test_a_verification_that_is_not_possible_raises_a_warning(served: Served) -> None:
    served.initialized()
    place = Path(str(served.lab.destination()).removeprefix("block:"))
    (place / "verify").write_text("in the way")
    served.define('verify_schedule = "every 1s"')
    until(lambda: served.alarms().get("verify") == "warning")
    assert "the scheduled verification failed: " in str(served.row()["problems"])
    (place / "verify").unlink()
    until(lambda: served.alarms() == {} and verified(served))


def test_one_at_a_time_which_ends_with_the_daemon_and_is_made_up_for(served: Served) -> None:
    served.initialized()
    for seed in range(3):
        served.lab.change(served.lab.source(), seed)
        served.service.update(NAME)
    served.define('verify_schedule = "every 1s"')
    until(lambda: verified(served))
    rate = parse_size("64KiB")  # so that it takes long
    served.redefine('verify_schedule = "every 1s"', f'verify_rate = "{rate}B/s"\n'
                    'verify_schedule = "every 1s"')  # fmt: skip
    until(lambda: list(Path(served.paths.run).glob("*.verifying")))
    before_ns = verified(served)
    time.sleep(2)
    served.lab.change(served.lab.source(), 9)
    served.service.update(NAME)  # it is not delayed
    assert served.in_step()
    refused = served.cli("verify", NAME)
    assert refused.returncode != 0 and "the mirror is being verified" in refused.stderr
    began_s = time.monotonic()
    assert served.daemon.stop() == 0
    assert time.monotonic() - began_s < 8
    served.redefine_stopped(f'verify_rate = "{rate}B/s"\n', "")
    served.redefine_stopped('"every 1s"', '"@yearly"')
    with sqlite3.connect(served.paths.catalogue) as db:  # as if it was done two years ago
        db.execute("UPDATE verification SET at_ns = at_ns - ?", (2 * 366 * 86400 * 10**9,))
    served.daemon.start()
    until(lambda: verified(served) > before_ns)
