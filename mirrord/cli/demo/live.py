"""The story of a live mirror: a link that becomes slow and good again, and a primary that fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from mirrord.cli.demo.clients import BLOCK_BYTES, Writers
from mirrord.cli.demo.guard import guarded
from mirrord.cli.demo.relay import Relay
from mirrord.cli.demo.terminal import (
    TIMEOUT_S,
    Terminal,
    say,
    temporary_folder,
    wait_until,
)
from mirrord.core.errors import InvariantError, IoFailed, NoSpace
from mirrord.core.units import format_duration, format_size
from mirrord.system import clock, command, sockets
from mirrord.system.processes import listener

_IMAGE_BYTES = 16 << 20
#: Both images, the redo log at the secondary, and the records.
_SPACE_BYTES = 400 << 20
_CLIENTS = 4
_MAX_LAT = "50ms"
_POLICY = ("--policy", "dynamic", "--max-lat", _MAX_LAT, "--hold-down", "5s")
#: How late the slow link is, in each direction.
_SLOW_S = 0.1
_LINE_EVERY_S, _POLL_S = 1.0, 0.1
_ANSWER_S = 5.0


def play() -> None:
    """Tell the whole story; removes all that it made, also when it is killed."""
    with temporary_folder() as folder:
        story = LiveStory(folder)
        with guarded(folder, story.home):
            story.tell()


class LiveStory(Terminal):
    """Both ends of a mirror on this host, with clients and a link of the demo's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._source, self._destination = (_End(folder / name) for name in ("disk1", "disk2"))
        self._socket = self.home / "run/db.nbd"
        blocks = _IMAGE_BYTES // BLOCK_BYTES // _CLIENTS
        self._writers = Writers(self._socket, clients=_CLIENTS, blocks=blocks)
        self._began_s = 0.0

    def tell(self) -> None:
        """The whole story, from the setup to the takeover."""
        self._create()
        relay = self._insert_relay()
        with self.background("daemon") as daemon:
            wait_until(self._is_connected, "the connection through the relay")
            self.run("serve", "db")
            with self._writers.running():
                self._change_link(relay)
                self._fail(daemon)
        self._take_over()

    def _create(self) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < _SPACE_BYTES:
            raise NoSpace(
                f"the demo needs {format_size(_SPACE_BYTES)}",
                where=str(self.folder.parent),
                why=f"{format_size(free)} are free",
                hint="Set TMPDIR to a folder with more space.",
            )
        ends = (self._source, self._destination)
        for end in ends:
            end.image.parent.mkdir()
        with self._source.image.open("wb") as image:
            image.truncate(_IMAGE_BYTES)
        say(f"Two images of {format_size(_IMAGE_BYTES)}. With the policy `dynamic` the mirror is")
        print(f"# synchronous while writes take at most {_MAX_LAT} on average.", flush=True)
        self.run("create", "db", *(f"image:{end.image}" for end in ends), *_POLICY)
        self.run("initialize", "db")

    def _insert_relay(self) -> Relay:
        """The primary connects to a relay from now on. The daemon starts the secondary again."""
        say("From now on both ends are connected by a relay, which can delay what it forwards.")
        found = self.json("status", "db")["mirrors"][0]["live"]
        relay = Relay(found["destination"]["link"])
        self._source.ask(f"peer {relay.address}")
        self._destination.ask("stop")
        return relay

    def _is_connected(self) -> bool:
        try:
            status = self._source.ask("status")
        except (OSError, ValueError):
            return False
        return bool(status["connected"] and status["in_sync"])

    def _change_link(self, relay: Relay) -> None:
        say(f"{_CLIENTS} clients write blocks of {BLOCK_BYTES >> 10} KiB by NBD.")
        print("\n    time  state               writes/s    latency           M         lag")
        self._began_s = clock.monotonic_s()
        self._watch("in-sync", 3.0)
        say(f"The link becomes slow: a round trip takes {format_duration(2 * _SLOW_S)} more.")
        relay.delay_s = _SLOW_S
        self._watch("semi-sync", 0.0)
        say("The policy has left sync: the replica may be M behind. M grows when a client has")
        print(f"# waited for {_MAX_LAT}.", flush=True)
        self._watch("semi-sync", 6.0)
        self.run("status", "db")
        say("The link is good again. The policy reduces M, and returns to sync.")
        relay.delay_s = 0.0
        self._watch("in-sync", 0.0)
        say("From now on each acknowledged write is at both ends again.")
        self._watch("in-sync", 2.0)

    def _watch(self, state: str, seconds: float) -> None:
        """Print a line each second, for so long and until the primary is in that state."""
        until_s = clock.monotonic_s() + seconds
        deadline_s = until_s + TIMEOUT_S
        line_s = clock.monotonic_s() + _LINE_EVERY_S
        while True:
            clock.sleep_s(_POLL_S)
            status, now_s = self._source.ask("status"), clock.monotonic_s()
            if self._writers.problem:
                raise IoFailed("a client of the demo has ended", why=self._writers.problem)
            is_over = status["state"] == state and now_s >= until_s
            if is_over or now_s >= line_s:
                line_s = now_s + _LINE_EVERY_S
                self._print(status)
            if is_over:
                return
            if now_s > deadline_s:
                raise IoFailed(f"the demo waited too long for {state}")

    def _print(self, status: dict[str, Any]) -> None:
        rate = self._writers.rate()
        row = [
            f"{clock.monotonic_s() - self._began_s:6.1f} s",
            f"{status['state']:18}",
            f"{rate.writes_per_s:8.0f}",
            f"{rate.latency_s * 1000:6.1f} ms",
        ]
        if status["state"] == "semi-sync":
            row += [f"{format_size(status[key]):>10}" for key in ("lag_limit_bytes", "lag_bytes")]
        print("  ".join(row), flush=True)

    def _fail(self, daemon: command.Process) -> None:
        """As if the primary's host lost power."""
        self._watch("in-sync", 0.0)
        daemon.kill()
        self._source.kill()
        daemon.wait(timeout=TIMEOUT_S)
        say("Disaster: the daemon and the primary's process are killed while clients write.")

    def _take_over(self) -> None:
        self.run("break", "db")
        self.run("serve", "db")
        found = self._writers.compare(self._socket)
        self._writers.rate()
        say("The clients' records are compared with the replica, block by block:")
        print(f"  writes acknowledged             {self._writers.acknowledged:8,}")
        print(f"  blocks compared                 {found.blocks:8,}")
        print(f"  blocks that lack the last write {found.lost:8,}", flush=True)
        if found.lost:
            raise InvariantError("writes that were acknowledged in sync are missing at the replica")
        say("No acknowledged write was lost.")


class _End:
    """An image with the records of its end, and the process there."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "db.img"
        self._control = folder / ".mirrord/db.img/live/control"

    def ask(self, line: str) -> Any:
        """The answer of its process."""
        with closing(sockets.connected(self._control, timeout_s=_ANSWER_S)) as made:
            made.sendall(line.encode() + b"\n")
            with made.makefile("rb") as answers:
                return json.loads(answers.readline())

    def kill(self) -> None:
        """End its process at once."""
        with closing(sockets.connected(self._control, timeout_s=_ANSWER_S)) as made:
            os.kill(listener(made), signal.SIGKILL)
