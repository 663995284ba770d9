"""`live`: holds back the clients of an image that is mirrored live. Its process, `mirrord-live`,
begins no request and lets no answer out; writes wait, and nothing fails.

The hold lasts as long as the connection on which it was requested, and `max_s` at most: the kernel
closes the connection of a guard that is killed, and the process itself holds the time limit.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from mirrord.pausers.contract import Pauser
from mirrord.system import files, paths, sockets

_ANSWER_S = 5.0
_ANSWER_BYTES_MAX = 1 << 16


class LivePauser(Pauser):
    """argument: the location of the image, as in the endpoint of the live mirror."""

    def __init__(self, kind: str, argument: str) -> None:
        super().__init__(kind, argument)
        if not argument.startswith("/"):
            raise ValueError("expected the path of an image, such as live:/srv/db.img")
        self._socket: socket.socket | None = None

    def lock_path(self) -> Path | None:
        """See `Pauser.lock_path`: the folder of its records; `check` tells that there is none."""
        store = paths.live_store(self.argument)
        return store if store.is_dir() else None

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`. What clients have written is on its way to the disk before."""
        try:
            self._socket = sockets.connected(
                paths.live_store(self.argument) / "control", timeout_s=_ANSWER_S
            )
            role = str(self._ask("status").get("role"))
        except OSError as error:
            raise self._unanswered(error) from None
        if role != "primary":
            raise self.failed(
                "the image has no clients that could be held back",
                why=f"this end of the live mirror is {role}",
                hint="Name the image at the end that is the primary.",
            )
        self._sync()

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`. A device has a cache of its own, which its snapshot does not have."""
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout_s)
            answer = self._ask(f"hold {1000 * self.max_s:.0f}")
            if not answer.get("ok"):
                raise self.failed(
                    "the clients of the image cannot be held back", why=str(answer.get("error"))
                )
        except OSError as error:
            raise self._unanswered(error) from None
        if stat.S_ISBLK(os.stat(self.argument).st_mode):
            self._sync()

    def is_paused(self) -> bool:
        """See `Pauser.is_paused`: the process closes the connection before it lets anything out."""
        if self._socket is None:
            return False
        watch = select.poll()
        watch.register(self._socket, select.POLLIN)
        return not watch.poll(0)

    def resume(self) -> None:
        """See `Pauser.resume`. In another process there is nothing to do."""
        self.close()

    def close(self) -> None:
        """See `Pauser.close`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _sync(self) -> None:
        files.sync_device("LIVEPAUSE:SYNC", self.argument)

    def _ask(self, line: str) -> dict[str, object]:
        assert self._socket is not None
        self._socket.sendall(line.encode() + b"\n")
        found = b""
        while not found.endswith(b"\n"):
            data = self._socket.recv(65536)
            if not data or len(found) > _ANSWER_BYTES_MAX:
                raise ConnectionError("the connection was closed")
            found += data
        try:
            answer = json.loads(found)
        except ValueError:
            raise ConnectionError("that is not mirrord-live") from None
        return answer if isinstance(answer, dict) else {}

    def _unanswered(self, error: OSError) -> Exception:
        return self.failed(
            "the process of the live mirror does not answer",
            why=error.strerror or str(error) or "no answer in time",
            hint="Give the image as in the endpoint of its mirror, on this host; 'mirrord status' "
            "shows whether mirrord-live runs.",
        )
