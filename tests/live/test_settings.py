"""What is pure: definitions, policies, readings, addresses."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest

from mirrord.config.reading import parse_both
from mirrord.config.writing import render, with_policy
from mirrord.control import livetext
from mirrord.core.errors import ConfigError, MirrordError, UsageError
from mirrord.core.live import LiveReading, LiveStatus, Mode
from mirrord.core.units import window_argument
from mirrord.drivers.image.process import _PROBLEMS, check_address, failure
from mirrord.engine.limits import rate_of
from mirrord.live.mirror import LiveMirror, _is_complete
from mirrord.live.serving import _address, uri_of
from mirrord.live.supervise import _has_window
from mirrord.policies.fixed import Fixed
from mirrord.policies.policy import Observation
from tests.live.lab import ROOT

TEXT = """id = "1a2b3c4d"
policy = "strict-sync"
{}
[site.berlin]
endpoint = "image:/srv/db.img"
link_address = "[fd00::1]:9750"

[site.dr]
endpoint = "image://dr/dev/zvol/tank/db"
link_address = "192.0.2.1"
"""


def test_a_definition_of_an_image() -> None:
    both = parse_both("db", TEXT.format(""), "db.toml")
    for definition in both.values():
        assert definition.is_live and definition.policy == "strict-sync"
        assert definition.link_addresses == ("[fd00::1]:9750", "192.0.2.1")
    assert both["dr"].source.location == "/dev/zvol/tank/db"
    written = render(both["berlin"])
    assert "keep" not in written and "snapshots" not in written
    assert 'policy = "async"' in with_policy(written, "async")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('schedule = "every 5m"', "'schedule' is not possible for images"),
    ],
)
def test_a_setting_that_images_do_not_have(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_both("db", TEXT.format(line), "db.toml")
    assert says in str(caught.value) and caught.value.where == "db.toml:3"


def test_rates_are_those_of_other_mirrors() -> None:
    lines = 'throttle = "1MiB/s 08:00-18:00, else unlimited"\nverify_rate = "5MiB/s"'
    definition = parse_both("db", TEXT.format(lines), "db.toml")["berlin"]
    noon, night = (hour * 3600 * 10**9 for hour in (12, 20))
    assert rate_of(definition, "UTC", noon) == 1 << 20
    assert rate_of(definition, "UTC", night) == 0
    assert definition.verify.rate == 5 << 20


@pytest.mark.parametrize(
    ("given", "told"), [("64MiB", "67108864"), ("1.5s", "1.5s"), ("9ms", "0.009s")]
)
def test_the_window_of_semi_sync(given: str, told: str) -> None:
    both = parse_both("db", TEXT.format(f'window = "{given}"'), "db.toml")
    assert {each.window for each in both.values()} == {given}
    assert f'window = "{given}"' in render(both["berlin"])
    assert window_argument(given) == told


@pytest.mark.parametrize(
    ("given", "has_bytes", "has_us"),
    [
        ("64MiB", 64 << 20, 0),
        # mirrord-live limits the bytes, and cuts a fraction of a microsecond off.
        ("4GiB", 1 << 30, 0),
        ("0.0003s", 1 << 30, 299),
        ("1.0000006s", 1 << 30, 1_000_000),
    ],
)
def test_the_window_that_a_primary_has_is_not_set_again(
    given: str, has_bytes: int, has_us: int
) -> None:
    definition = parse_both("db", TEXT.format(f'window = "{given}"'), "db.toml")["berlin"]
    mirror = cast(LiveMirror, SimpleNamespace(definition=definition))
    has = LiveStatus(window_bytes=has_bytes, window_us=has_us)
    assert _has_window(mirror, has)
    assert not _has_window(mirror, LiveStatus(window_bytes=5 << 20, window_us=0))
    assert not _has_window(mirror, LiveStatus(window_bytes=1 << 30, window_us=5_000_000))


def test_what_a_primary_saves_on_the_link() -> None:
    definition = parse_both("db", TEXT.format('merge_above = "1MiB"\ncompress = false'), "db.toml")
    assert (definition["berlin"].merge_above, definition["dr"].compress) == (1 << 20, False)
    text = render(definition["berlin"])
    again = parse_both("db", text, "db.toml")["berlin"]
    assert (again.merge_above, again.compress) == (1 << 20, False)
    usual = parse_both("db", TEXT.format(""), "db.toml")["berlin"]
    assert (usual.merge_above, usual.compress) == (10_000_000, True)


def test_when_a_write_is_acknowledged() -> None:
    definition = parse_both("db", TEXT.format('ack = "durable"'), "db.toml")["berlin"]
    assert parse_both("db", render(definition), "db.toml")["berlin"].ack == "durable"
    with pytest.raises(ConfigError) as caught:
        parse_both("db", TEXT.format('ack = "journaled"'), "db.toml")
    assert "expected written or durable; in semi-sync it is always journaled" in str(caught.value)


@pytest.mark.parametrize("line", ['merge_above = "1MiB"', "compress = false", 'ack = "durable"'])
def test_what_is_saved_on_the_link_is_for_images(line: str) -> None:
    text = TEXT.format(line).replace("strict-sync", "async")
    text = text.replace("image:/srv/db.img", "btrfs:/srv/a")
    text = text.replace("image://dr/dev/zvol/tank/db", "btrfs://dr/srv/a")
    with pytest.raises(ConfigError) as caught:
        parse_both("db", text, "db.toml")
    assert f"'{line.split()[0]}' is for images" in str(caught.value)


@pytest.mark.parametrize("given", ["much", "", "-1s", "5 MiB/s", "0", "0s"])
def test_a_wrong_window(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_both("db", TEXT.format(f'window = "{given}"'), "db.toml")
    assert caught.value.where == "db.toml:3"


def test_a_window_is_for_images() -> None:
    text = TEXT.format('window = "1MiB"').replace("strict-sync", "async")
    text = text.replace("image:/srv/db.img", "btrfs:/srv/a")
    text = text.replace("image://dr/dev/zvol/tank/db", "btrfs://dr/srv/a")
    with pytest.raises(ConfigError) as caught:
        parse_both("db", text, "db.toml")
    assert "'window' is for images" in str(caught.value)


@pytest.mark.parametrize("given", ["two words", "192.0.2.1:0", "192.0.2.1:99999"])
def test_a_wrong_link_address(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_both("db", TEXT.format("").replace("192.0.2.1", given), "db.toml")
    assert caught.value.where == "db.toml:10"


PRIMARY = LiveStatus(running=True, role="primary", mode="sync", epoch=1, generation=1, since=100)


@pytest.mark.parametrize("mode", Mode)
def test_a_fixed_policy_wants_its_mode_whatever_it_sees(mode: Mode) -> None:
    policy = Fixed(mode)
    for now in Mode:
        for lag_s in (None, 0.0, 1e6):
            seen = Observation(1.0, now, connected=False, in_sync=False, lag_s=lag_s)
            directive, memory = policy.decide(seen, None)
            assert directive.mode is mode and memory is None


def test_the_primary_of_the_higher_epoch_decides() -> None:
    newer = PRIMARY._replace(epoch=2)
    assert LiveReading("sync", PRIMARY, newer, 0).primary is newer
    assert LiveReading("sync", newer, PRIMARY, 0).primary is newer
    assert LiveReading("sync", newer._replace(role="fenced"), PRIMARY, 0).primary is PRIMARY


def test_the_lag_is_that_of_the_primary() -> None:
    reading = LiveReading("sync", PRIMARY, None, 160 * 10**9)
    assert reading.lag_s == 60
    assert reading._replace(source=PRIMARY._replace(in_sync=True)).lag_s == 0
    assert reading._replace(source=PRIMARY._replace(generation=0)).lag_s is None
    assert reading._replace(source=None).lag_s is None


def test_in_async_a_copy_is_complete_when_both_ends_have_recorded_it() -> None:
    sent = PRIMARY._replace(mode="async", state="entering-sync", generation=3, dirty_bytes=0)
    assert not _is_complete(sent, 3)
    assert _is_complete(sent._replace(state="out-of-sync", generation=4, dirty_bytes=9), 3)
    assert not _is_complete(sent._replace(mode="sync", generation=4), 3)
    assert _is_complete(sent._replace(mode="sync", in_sync=True), 3)


def test_rates_between_two_readings() -> None:
    before = LiveReading("sync", PRIMARY, None, 10**9)
    later = PRIMARY._replace(writes=10, written_bytes=10 << 20, sent_bytes=4 << 20)
    now = LiveReading("sync", later, None, 3 * 10**9)
    assert livetext.rates(before, now) == (
        "5 writes/s, 5.00 MiB/s written, 2.00 MiB/s sent, of these 0 B/s copied"
    )
    assert livetext.rates(now, before) == ""
    restarted = LiveReading("sync", PRIMARY, None, 4 * 10**9)
    assert livetext.rates(now, restarted) == ""


def test_addresses_of_clients() -> None:
    assert _address("/run/s", "") == "unix:/run/s"
    assert _address("", "[::1]:10809") == "[::1]:10809"
    assert uri_of("unix:/run/s") == "nbd+unix:///?socket=/run/s"
    for socket, listen in (("s", ""), ("", "1"), ("", "host:"), ("", "host:70000"), ("/s", "h:1")):
        with pytest.raises(UsageError):
            _address(socket, listen)


@pytest.mark.parametrize("address", ["a\nimage /etc/shadow", "unix:/s\nnbd x", "a b", "unix:s"])
def test_an_address_is_one_line_of_the_configuration(address: str) -> None:
    with pytest.raises(MirrordError, match="invalid address"):
        check_address(address)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("error[address-in-use]: 0.0.0.0:1: taken", "is in use by another program: 0.0.0.0:1"),
        ("link: connected\nerror[image-in-use]: /srv/x: mounted", "the image is in use"),
        ("error[no-space]: the disk is full", "no space is left"),
        ("error[refused]: first\nerror[image-resized]: /srv/x", "cannot be mirrored: /srv/x"),
        ("error: /srv/x: No space left on device", "refused this: /srv/x: No space"),
        ("Killed\n", "refused this: Killed"),
        ("", "refused this: it gave no reason"),
    ],
)
def test_what_the_program_says(said: str, what: str) -> None:
    assert what in str(failure(said, "image:/srv/x"))


def test_every_code_of_the_program_is_known() -> None:
    """But for `refused`, which says nothing more."""
    source = (ROOT / "native/live/src/problem.rs").read_text()
    codes = set(re.findall(r'=> "([a-z-]+)"', source))
    assert codes == {"refused", *_PROBLEMS}
