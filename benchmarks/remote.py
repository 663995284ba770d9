"""A mirror on another host: latency, bulk, cuts, and a hundred mirrors; compared with btrbk on ssh.

The other host is a network namespace with a real sshd; both have btrfs on loop devices of one
disk. A single part: `python -m benchmarks.remote latency` (or `bulk`, `text`, `cuts`, `hundred`).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import remote_cuts
from benchmarks.compress import text
from benchmarks.harness import Row, median, mirrord_command, run, save, table, timed
from benchmarks.remote_stage import Stage, stage
from benchmarks.update_latency import _change, _visible
from mirrord.drivers.registry import block_volumes
from tests.support.verbs import Service

ROUNDS = 25
FILES = 200
GIB = int(os.environ.get("MIRRORD_BENCH_REMOTE_GIB", "2"))
MIRRORS = 100
TEXT_BYTES = 512 << 20


def measure() -> list[Row]:
    """All parts, each on a separate stage."""
    return [row for part in PARTS.values() for row in part()]


def latency() -> list[Row]:
    """4 KiB over an open connection, over a new one, and with a run of btrbk, alternating."""
    with stage(4) as at:
        home = at.one / "home"
        run("btrfs", "subvolume", "create", home)
        for number in range(FILES):
            (home / f"file{number}").write_bytes(os.urandom(4096))
        btrbk = at.btrbk("btrbk", ["home"])
        keeping = at.btrbk("btrbk-keeping", ["home"], "all")
        api = at.service()
        api.create("home", f"btrfs:{home}", f"btrfs://dr{at.two / 'mirror'}")
        api.initialize("home")
        for words in (btrbk, keeping):
            at.run(words)
        inner, whole, first, command, peer, kept = [], [], [], [], [], []
        for number in range(ROUNDS):
            _change(home, 5 * number)
            seconds, whole_call = _visible(api)
            inner.append(seconds)
            whole.append(whole_call)
            at.shared.links.close()
            first.append(timed(lambda: api.status("home")))
            _change(home, 5 * number + 1)
            command.append(timed(functools.partial(at.run, mirrord_command("update", "home"))))
            _change(home, 5 * number + 2)
            peer.append(timed(functools.partial(at.run, btrbk)))
            _change(home, 5 * number + 3)
            kept.append(timed(functools.partial(at.run, keeping)))
        assert len(os.listdir(at.two / "btrbk-keeping")) == ROUNDS + 1
        api.close()
    ours, theirs, bare = median(inner), median(peer), median(kept)
    return [
        Row(
            "other host: 4 KiB update, call to visible",
            ours * 1e3,
            "ms",
            "<=",
            40,
            "btrbk run over ssh",
            theirs * 1e3,
        ),
        Row(
            "  times faster than btrbk",
            theirs / ours,
            "x",
            ">=",
            20,
            note=f"{bare / ours:.1f} x a run that deletes nothing ({bare * 1e3:.0f} ms)",
        ),
        Row(
            "  whole call, old snapshots pruned",
            median(whole) * 1e3,
            "ms",
            "<=",
            40,
            note=f"{theirs / median(whole):.1f} x faster than btrbk, which deletes as many",
        ),
        Row("  first connection, in a process that runs", median(first), "s", "<=", 0.6),
        Row(
            "  whole command with its first connection",
            median(command),
            "s",
            "<=",
            0.6,
            "btrbk run over ssh",
            theirs,
        ),
    ]


def bulk() -> list[Row]:
    """Full transfers of incompressible data: mirrord over TLS, plain pipes locally and over ssh.

    Each round runs all three, in another order, and deletes what it created. The connection of
    mirrord is open, as the daemon's is; ssh opens its own.
    """
    with stage(2 * GIB + 3) as at:
        home = at.one / "home"
        run("btrfs", "subvolume", "create", home)
        for number in range(GIB * 4):
            _noise(home / f"file{number}", 256 << 20)
        plain = at.one / "plain"
        run("btrfs", "subvolume", "snapshot", "-r", home, plain)
        api = at.service()
        took: dict[str, list[float]] = {"mirrord": [], "local": [], "ssh": []}
        used: dict[str, list[float]] = {way: [] for way in took}
        for number in range(3):
            for way in [*took][number:] + [*took][:number]:
                os.sync()
                before_s = at.processor_s()
                if way == "mirrord":
                    took[way].append(_initialize(at, api, f"m{number}", home))
                else:
                    over = at.ssh() if way == "ssh" else []
                    took[way].append(timed(functools.partial(_pipe, plain, at.two, over)))
                    _delete(at.two, at.two / plain.name)
                used[way].append((at.processor_s() - before_s) / GIB)
        api.close()
    ours, local, ssh = (min(took[way]) for way in ("mirrord", "local", "ssh"))
    size = GIB * 1024
    all_of = "; ".join(f"{way}: {', '.join(f'{s:.1f}' for s in took[way])} s" for way in took)
    return [
        Row(
            f"{GIB} GiB through the data channel: speed against send | receive here",
            local / ours,
            "x",
            ">=",
            0.9,
            note=f"{size / ours:.0f} against {size / local:.0f} MiB/s; {all_of}",
        ),
        Row(
            "  against send | ssh | receive",
            ssh / ours,
            "x",
            ">=",
            1.3,
            note=f"{size / ours:.0f} against {size / ssh:.0f} MiB/s",
        ),
        Row(
            "  processor time of both ends for each GiB",
            min(used["mirrord"]),
            "s",
            "<=",
            3.5,
            "send | receive here",
            min(used["local"]),
            f"each: {', '.join(f'{s:.2f}' for s in used['mirrord'])} s",
        ),
    ]


def _noise(file: Path, size: int) -> None:
    with file.open("wb") as stream:
        for _ in range(0, size, 4 << 20):
            stream.write(os.urandom(4 << 20))


def _initialize(at: Stage, api: Service, name: str, home: Path, host: str = "dr") -> float:
    """Seconds of a first transfer over an open connection; the result is deleted again."""
    target = at.two / name
    api.create(name, f"btrfs:{home}", f"btrfs://{host}{target}")
    took = timed(lambda: api.initialize(name))
    shown = (target / "current").resolve()
    api.delete(name, yes=True, keep_snapshots=True)
    _delete(at.two, shown)
    return took


def _delete(mount: Path, subvolume: Path) -> None:
    run("btrfs", "subvolume", "delete", "-c", subvolume)
    run("btrfs", "subvolume", "sync", mount)


def _pipe(snapshot: Path, into: Path, over: list[str]) -> None:
    """Plain send and receive, durable at the end, as a transfer by mirrord is."""
    with subprocess.Popen(["btrfs", "send", "-q", str(snapshot)], stdout=subprocess.PIPE) as sender:
        then = f"btrfs receive -q {into} && btrfs filesystem sync {into}"
        words = [*over, then] if over else ["sh", "-c", then]
        subprocess.run(words, stdin=sender.stdout, check=True, capture_output=True)
    assert sender.returncode == 0


def compressed() -> list[Row]:
    """Text over a link of 1 Gbit/s: with the compression that mirrord chooses, and without."""
    with stage(6) as at:
        home = at.one / "home"
        run("btrfs", "subvolume", "create", home)
        content = text(64 << 20)
        for number in range(TEXT_BYTES // len(content)):
            (home / f"file{number}").write_bytes(content)
        at.describe(at.host._replace(name="plain", compress="off"))
        api = at.service()
        took: dict[str, list[float]] = {"dr": [], "plain": []}
        with at.rate(1_000_000_000):
            for number in range(2):
                for host in [*took][number:] + [*took][:number]:
                    os.sync()
                    took[host].append(_initialize(at, api, f"{host}{number}", home, host))
        api.close()
    ours, plain = min(took["dr"]), min(took["plain"])
    all_of = "; ".join(f"{host}: {', '.join(f'{s:.1f}' for s in took[host])} s" for host in took)
    return [
        Row(
            f"{TEXT_BYTES >> 20} MiB of text over 1 Gbit/s: speed against compress = off",
            plain / ours,
            "x",
            ">=",
            1.5,
            note=f"{TEXT_BYTES / ours / (1 << 20):.0f} against "
            f"{TEXT_BYTES / plain / (1 << 20):.0f} MiB/s; {all_of}",
        ),
    ]


def hundred() -> list[Row]:
    """A hundred mirrors of either kind over one host pair, 4 KiB changed in each, eight at once."""
    rows = []
    for kind in ("btrfs", "block"):
        with stage(6) as at:
            api, names = at.service(), [f"m{number}" for number in range(MIRRORS)]
            for name in names:
                _small(kind, at.one / name)
                api.create(name, f"{kind}:{at.one / name}", f"{kind}://dr{at.two / name}")
                api.initialize(name)
            took = []
            for _ in range(3):
                for name in names:
                    _change_small(kind, at.one / name)
                took.append(timed(functools.partial(_update_all, at, names)))
            api.close()
        rows.append(
            Row(
                f"{MIRRORS} {kind} mirrors over one host pair, 4 KiB each",
                median(took),
                "s",
                "<=",
                5,
                note=f"three rounds: {', '.join(f'{s:.2f}' for s in took)} s",
            )
        )
    return rows


def _update_all(at: Stage, names: list[str]) -> None:
    """As the daemon does: each thread has its own service, and at most eight run at a time."""
    local = threading.local()

    def one(name: str) -> str:
        if not hasattr(local, "service"):
            local.service = at.service()
        return str(local.service.update(name).status)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, names)) == {"done"}


def _small(kind: str, path: Path) -> None:
    if kind == "btrfs":
        run("btrfs", "subvolume", "create", path)
        (path / "file").write_bytes(os.urandom(1 << 20))
    else:
        with block_volumes().Volume.create(path, 64 << 20) as volume:
            volume.write(0, os.urandom(1 << 20))


def _change_small(kind: str, path: Path) -> None:
    if kind == "btrfs":
        with (path / "file").open("r+b") as file:
            file.write(os.urandom(4096))
    else:
        with block_volumes().Volume.open(path, writable=True) as volume:
            volume.write(0, os.urandom(4096))


PARTS: dict[str, Callable[[], list[Row]]] = {
    "latency": latency, "bulk": bulk, "text": compressed, "cuts": remote_cuts.measure,
    "hundred": hundred,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Run the named parts, or all."""
    rows: list[Row] = []
    for name in names or PARTS:
        found = PARTS[name]()
        save(f"remote-{name}", found)
        rows += found
    print(table(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
