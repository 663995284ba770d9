"""A byte stream to a program on another host, over SSH with Paramiko."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mirrord.core.errors import MirrordError, Untrusted
from mirrord.core.model import RemoteHost
from mirrord.transport import failures
from mirrord.transport.base import ByteStream
from mirrord.transport.local import STDERR_BYTES_MAX

if TYPE_CHECKING:
    from mirrord.transport.ssh_client import Route

#: How long `failure` and `stderr_tail` wait for the last output of a program that ended, seconds.
_LAST_WORDS_S = 0.5
#: sshd does not accept larger packets.
_PACKET_BYTES = 32 << 10


class SshStream(ByteStream):
    """Standard input and output of the remote program."""

    def __init__(self, route: Route, channel: Any, host: RemoteHost) -> None:
        self.peer = host.name
        self.host = host
        self._route, self._channel, self._transport = route, channel, route.last
        self._writing, self._closing = threading.Lock(), threading.Lock()
        self._closed = False
        self._kept = bytearray()
        self._listener = threading.Thread(
            target=self._listen, name=f"stderr {host.name}", daemon=True
        )
        self._listener.start()

    def _listen(self) -> None:
        # Unread output would fill the window that it shares with the data.
        try:
            while part := self._channel.recv_stderr(4096):
                self._kept += part
                del self._kept[:-STDERR_BYTES_MAX]
        except Exception:  # the connection is lost, and `read` reports it
            return

    def read(self, most: int) -> bytes:
        """See `ByteStream.read`."""
        if self._closed:
            return b""
        try:
            data: bytes = self._channel.recv(most)
        except OSError:
            raise
        except Exception as error:  # Paramiko's own, and EOFError
            raise ConnectionError(str(error) or type(error).__name__) from None
        return data

    def write(self, *parts: bytes | memoryview) -> None:
        """Write all of the parts, in packets as large as the other end accepts."""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        view = memoryview(data).cast("B")
        with self._writing:
            at = 0
            while at < len(view):
                try:
                    sent = self._channel.send(bytes(view[at : at + _PACKET_BYTES]))
                except OSError:
                    raise
                except Exception as error:  # Paramiko's own, and EOFError
                    raise ConnectionError(str(error) or type(error).__name__) from None
                if not sent or not self._transport.is_active():
                    raise ConnectionResetError("the connection is lost")
                at += sent

    def close(self) -> None:
        """Close it immediately; the remote program reads the end of its input."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._route.close()
        self._listener.join(_LAST_WORDS_S)

    def stderr_tail(self) -> str:
        """The end of the program's standard error."""
        if self._channel.exit_status_ready() or not self._transport.is_active():
            self._listener.join(_LAST_WORDS_S)
        return bytes(self._kept).decode(errors="replace").strip()

    def status(self, *, wait_s: float = 0.0) -> int | None:
        """The program's exit status, None while it runs (or when it was not reported)."""
        self._channel.status_event.wait(wait_s)
        status: int = self._channel.exit_status
        return status if status >= 0 else None

    def failure(self, heard: bytes = b"") -> MirrordError:
        """Why it did not respond as mirrord's agent."""
        return failures.no_agent(
            self.host, self.status(wait_s=_LAST_WORDS_S), self.stderr_tail(), heard
        )


def open_ssh(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> SshStream:
    """Run the host's command there, through `jumps` (first hop first).

    `Unreachable` for network failures, which may be temporary; `Untrusted` for host keys and
    logins; `ConfigError` for an ssh configuration that cannot be parsed.
    """
    import paramiko

    from mirrord.transport import ssh_client

    route = ssh_client.connect(host, jumps)
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        route.close()

    # Paramiko waits without a limit for the answer to the request to run a program.
    timer = threading.Timer(route.target.connect_s, end)
    timer.daemon = True
    timer.start()
    try:
        try:
            channel = route.last.open_session(
                window_size=ssh_client.WINDOW_BYTES, max_packet_size=ssh_client.PACKET_BYTES_MAX
            )
            channel.exec_command(shlex.join(host.command))
        finally:
            timer.cancel()
            timer.join()
            if overdue.is_set():
                stage = "the login is accepted, but no program starts"
                raise failures.silent(route.target, stage) from None
    except (paramiko.SSHException, EOFError, OSError) as error:
        route.close()
        why = error.text if isinstance(error, paramiko.ChannelException) else str(error)
        raise Untrusted(
            f"'{route.target.user}' may not run a program on the remote host",
            where=host.name,
            why=why,
            hint="Allow that user to run programs: check ForceCommand and MaxSessions in that "
            "host's sshd_config, the user's shell, and the log (journalctl -u ssh).",
        ) from None
    except BaseException:
        route.close()
        raise
    return SshStream(route, channel, host)


def host_key(host: RemoteHost, jumps: Sequence[RemoteHost] = ()) -> tuple[str, str]:
    """(type, fingerprint) of the server's host key, without trusting it or logging in."""
    from mirrord.transport import ssh_client
    from mirrord.transport.known_hosts import fingerprint

    met: list[Any] = []
    ssh_client.connect(host, jumps, meet=met.append).close()
    return met[0].get_name(), fingerprint(met[0].asbytes())
