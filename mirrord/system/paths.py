"""The folders of mirrord: /etc, /var/lib and /run for root, XDG folders otherwise, or all below
`MIRRORD_HOME` when that is set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from mirrord.core.errors import ConfigError, IoFailed


class Paths(NamedTuple):
    """config: definitions in TOML; state: the catalogue; run: locks and progress."""

    config: Path
    state: Path
    run: Path

    @property
    def mirrors(self) -> Path:
        """The folder of mirror definitions."""
        return self.config / "mirrors.d"

    @property
    def host(self) -> Path:
        """The file of this host's settings."""
        return self.config / "mirrord.toml"

    @property
    def hosts(self) -> Path:
        """The folder of the settings of other hosts."""
        return self.config / "hosts.d"

    @property
    def keys(self) -> Path:
        """The folder of the private keys that mirrord made for other hosts."""
        return self.config / "keys"

    @property
    def schedules(self) -> Path:
        """The folder of user-defined named schedules."""
        return self.config / "schedules.d"

    @property
    def pki(self) -> Path:
        """The folder of this host's certificate authority for TLS."""
        return self.config / "pki"

    @property
    def peers(self) -> Path:
        """The folder of the peers that may connect over TLS."""
        return self.config / "peers.d"

    @property
    def act_socket(self) -> Path:
        """The daemon's socket for clients that may make changes."""
        return self.run / "control.sock"

    @property
    def read_socket(self) -> Path:
        """The daemon's socket for read-only clients."""
        return self.run / "status.sock"

    @property
    def catalogue(self) -> Path:
        """The catalogue's file."""
        return self.state / "catalogue.sqlite"

    @property
    def daemon_lock(self) -> Path:
        """The lock of the daemon, one for each state folder."""
        return self.state / "daemon.lock"

    def make(self, *, state: bool = True) -> None:
        """Create the missing folders, mode 0700: they reveal what is mirrored where. state: also
        that of the catalogue; `IoFailed` when that one cannot be created, as `break` does without.
        """
        for folder in (self.mirrors, self.run, *([self.state] if state else [])):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                is_link = folder.is_symlink()
                first = "Check that its file system is mounted and writable"
                if isinstance(error, PermissionError):
                    first = "Run it as root"
                link = f"it is a link to {folder.readlink()}, where no folder is" if is_link else ""
                of_state = folder == self.state
                raise (IoFailed if of_state else ConfigError)(
                    f"the folder {folder} cannot be created",
                    where=str(self.catalogue) if of_state else "",
                    why=link or error.strerror or str(error),
                    hint=f"{first}, or set MIRRORD_HOME to a folder of your own.",
                ) from error


def live_store(location: str) -> Path:
    """The folder of the records of an image that is mirrored live: beside a file; for a device,
    which has no such place, in the state folder of this host.
    """
    if location.startswith("/dev/"):
        from urllib.parse import quote

        return standard().state / "live" / quote(location[1:], safe="")
    path = Path(location)
    return path.parent / ".mirrord" / path.name / "live"


def local_zone() -> str:
    """The name of this machine's time zone, "UTC" where it has none."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named and not named.startswith("/"):
        return named
    try:
        target = os.readlink("/etc/localtime")
    except OSError:
        target = ""
    _, found, zone = target.partition("zoneinfo/")
    if found:
        return zone
    try:
        return Path("/etc/timezone").read_text(encoding="ascii").strip() or "UTC"
    except (OSError, UnicodeDecodeError):
        return "UTC"


def standard() -> Paths:
    """The paths for this user and environment."""
    home = os.environ.get("MIRRORD_HOME")
    if home:
        root = Path(home).absolute()
        return Paths(root / "etc", root / "state", root / "run")
    if os.geteuid() == 0:
        return Paths(Path("/etc/mirrord"), Path("/var/lib/mirrord"), Path("/run/mirrord"))
    user = Path.home()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or user / ".config") / "mirrord"
    state = Path(os.environ.get("XDG_STATE_HOME") or user / ".local/state") / "mirrord"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Paths(config, state, Path(runtime) / "mirrord" if runtime else state / "run")
