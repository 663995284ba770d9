"""The image driver: an image that is mirrored live. Implements drivers/live.py."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from mirrord.core.errors import (
    MIRROR,
    Damaged,
    MirrordError,
    NotFound,
    Refused,
    Unreachable,
    UsageError,
)
from mirrord.core.live import ImageFacts, LiveSetup, LiveStatus, Mode
from mirrord.core.model import Role, Snapshot, VolumeFacts
from mirrord.core.relationship import Relationship
from mirrord.core.sealed import sealed, unsealed
from mirrord.core.units import MERGE_ABOVE
from mirrord.drivers.contract import Capability, Driver
from mirrord.drivers.image import place
from mirrord.drivers.image.process import (
    LiveProcess,
    at_path,
    check_address,
    failure,
    last_error,
    remove_socket,
)
from mirrord.drivers.live import AWAIT_S_MAX, Live, without_snapshots
from mirrord.drivers.refusals import (
    created_meanwhile,
    image_in_use,
    image_not_empty,
    images_differ_in_size,
    other_mirror,
)
from mirrord.system import command, files, locks, native, paths

_LABEL = "IMAGE:LIVE"
_CREATE_S = 60.0
_FILES = ("end.json", "tracking", "side", "redo", "identity", "identity.new")
#: For TLS on the link: by the key of the program's configuration.
_TLS_KEYS = {
    "tls-certificate": "certificate.pem",
    "tls-key": "key.pem",
    "tls-peer": "peer.pem",
}
_TLS = tuple(_TLS_KEYS.values())
#: What Linux takes, in bytes.
_SOCKET_PATH_MAX = 107
#: So many characters of a mirror's id are in the names of its units.
_UNIT_ID = 8
#: A verb of another process at the same end is over soon.
_LOCK_WAIT_S = 20.0


class _End(NamedTuple):
    """What is recorded of an end, in `end.json`. link to allowed: see `Live.live_start` and
    `Live.live_serve`. window: see `Live.live_window`. merge_above, compress, durable: see
    `Live.live_traffic`. copy_rate: see `Live.live_copy_rate`. controller: see `Live.live_control`.
    encrypted: the files in `_TLS` are there.
    """

    mirror_id: str
    name: str
    site: str
    volume: str
    link: str = ""
    peer: str = ""
    served: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    encrypted: bool = False
    window: str = ""
    merge_above: int = MERGE_ABOVE
    compress: bool = True
    durable: bool = False
    copy_rate: int = 0
    controller: str = ""


@without_snapshots
class ImageDriver(Driver, Live):
    """The image at `location`, an absolute path."""

    kind = "image"
    capabilities = Capability.NONE

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._store = paths.live_store(location)
        self._process = LiveProcess(self._store, str(self))

    @classmethod
    def at(cls, location: str) -> Self:
        """The driver of an image. (A type checker takes the class for abstract, because it does not
        see the methods that the decorator adds.)
        """
        return cls(location)

    # What every volume has

    def facts(self) -> VolumeFacts:
        """See `Volume.facts`."""
        end = self._end()
        role = None
        if end is not None:
            role = Role.MIRROR if self._process.status().role == "secondary" else Role.LIVE
        return place.volume_facts(self.kind, self.location, end.mirror_id if end else "", role)

    @contextmanager
    def _exclusive(self, purpose: str) -> Iterator[bool]:
        if not self._store.is_dir():
            yield False
            return

        def take() -> AbstractContextManager[object]:
            return locks.exclusive(self._store / "lock", purpose, what=str(self))

        with locks.waited_for(take, _LOCK_WAIT_S):
            yield True

    def snapshots(self) -> list[Snapshot]:
        """An image has none."""
        return []

    def relationships(self) -> dict[str, Relationship | None]:
        """Roles and epoch are in the tracking file."""
        return {}

    # Live

    def image_facts(self) -> ImageFacts:
        """See `Live.image_facts`."""
        found = place.image_facts(self.location)
        if found.size_bytes is None or found.in_use or self._process.is_running():
            return found
        words = [native.live_program(), "check", "--image", self.location]
        done = command.run(words, timeout_s=_CREATE_S)
        problem = last_error(done.errors)
        return found._replace(in_use=problem[1] if problem else done.errors.strip())

    def live_create(self, setup: LiveSetup) -> None:
        """See `Live.live_create`. `end.json` is written last."""
        if (known := self._end_of(setup)) and known.volume == setup.volume:
            return
        self._check_image(setup)
        files.make_directory(f"{_LABEL}:FOLDER", self._store, mode=0o700)
        with self.lock(f"mirrord {setup.name}"):
            if (found := self._end_of(setup)) and found.volume != setup.replaces:
                raise created_meanwhile(str(self))
            self._process.stop()
            for name in _FILES:
                files.remove_file(f"{_LABEL}:CLEAR", self._store / name)
            # A btrfs file with checksums has no space of its own. A host without btrfs may be one
            # without chattr, too.
            with suppress(OSError):
                command.run(["chattr", "+C", str(self._store)], timeout_s=_CREATE_S)
            role = "primary" if setup.primary else "secondary"
            words = ["create", "--image", self.location, "--state", str(self._store)]
            words += ["--role", role, "--volume", setup.volume]
            done = command.run([native.live_program(), *words], timeout_s=_CREATE_S)
            if done.status != 0:
                raise failure(done.errors, self.location)
            files.sync_directory(self._store)
            texts = (setup.certificate, setup.key, setup.trusted) if setup.certificate else ()
            for file, text in zip(_TLS, texts, strict=False):
                files.write_atomic(f"{_LABEL}:TLS", self._store / file, text.encode(), mode=0o600)
            end = _End(setup.mirror_id, setup.name, setup.site, setup.volume)
            self._record(end._replace(encrypted=bool(setup.certificate)))

    def _end_of(self, setup: LiveSetup) -> _End | None:
        """The end that is to be created, if it is there; `Refused` when it is another mirror's."""
        known = self._end()
        if known is not None and known.mirror_id != setup.mirror_id:
            raise other_mirror(str(self), known.mirror_id)
        return known

    def _check_image(self, setup: LiveSetup) -> None:
        found = self.image_facts()
        is_device = self.location.startswith("/dev/")
        if found.size_bytes is None and not setup.primary and not is_device:
            path = Path(self.location)
            if not path.parent.is_dir():
                raise NotFound(
                    "the folder of the image does not exist",
                    where=str(self),
                    hint=f"Create {path.parent} on that host, or mount its file system.",
                )
            files.make_sparse(f"{_LABEL}:IMAGE", path, setup.size_bytes)
            return
        if found.size_bytes is None:
            raise NotFound(
                "the image does not exist",
                where=str(self),
                hint="Give the path of an existing file or block device.",
            )
        if found.in_use:
            raise image_in_use(str(self), found.in_use)
        if found.size_bytes != setup.size_bytes:
            raise images_differ_in_size(str(self), found.size_bytes, setup.size_bytes)
        # Also where records of this mirror are left: after a break it is the only copy of its data.
        if not setup.primary and not found.blank:
            raise image_not_empty(str(self))

    def live_start(self, link: str, peer: str) -> LiveStatus:
        """See `Live.live_start`."""
        for address in (link, peer):
            check_address(address)
        with self._locked_end() as end:
            wanted = end._replace(peer=peer or end.peer)
            is_running = self._process.is_running()
            is_known = link in (end.link, end.link.rpartition(":")[0])
            if link and not (is_known and (is_running or self._process.may_listen(end.link))):
                wanted = wanted._replace(link=self._process.address(link))
            if not is_running:
                if wanted != end:
                    self._record(wanted)
                self._process.start(_unit_of(end), self._lines(wanted))
            elif peer or wanted != end:  # what is recorded may not be in force
                wanted = wanted._replace(link=end.link or wanted.link)  # the present listener stays
                self._save(wanted)
                self._process.ask(f"peer {wanted.peer}")
        return self.live_status()

    def _lines(self, end: _End) -> list[str]:
        return [
            f"image {self.location}",
            f"state {self._store}",
            "control control",
            *([f"link {end.link}"] if end.link else []),
            *([f"peer {end.peer}"] if end.peer else []),
            *([f"semi-window {end.window}"] if end.window else []),
            f"merge-above {end.merge_above}",
            f"compress {'on' if end.compress else 'off'}",
            f"durable {'on' if end.durable else 'off'}",
            f"copy-rate {end.copy_rate}",
            *(f"nbd {address}" for address in end.served),
            *(f"nbd-allow {network}" for network in end.allowed),
            *(f"{key} {file}" for key, file in _TLS_KEYS.items() if end.encrypted),
        ]

    def live_status(self) -> LiveStatus:
        """See `Live.live_status`."""
        end = self._end()
        if end is None:
            return LiveStatus()
        found = self._process.status()
        return found._replace(
            mirror_id=end.mirror_id,
            volume=end.volume,
            link=end.link,
            served=end.served,
            controller=end.controller,
            copy_rate=found.copy_rate if found.running else end.copy_rate,
        )

    def live_serve(self, address: str, allowed: tuple[str, ...] = ()) -> str:
        """See `Live.live_serve`."""
        check_address(address)
        for network in allowed:
            check_address(network)
        with self._locked_end() as end:
            where = address or f"unix:{paths.standard().run / end.name}.nbd"
            path = at_path(where)
            if not address:
                paths.standard().make()
            if path is not None and path.exists() and not path.is_socket():
                raise Refused(
                    "this is not a socket", where=str(path), hint="Give the path of a new one."
                )
            if path is not None and len(os.fsencode(path)) > _SOCKET_PATH_MAX:
                raise Refused(
                    "the path of the socket is too long",
                    where=str(path),
                    hint="Give one of at most 107 bytes.",
                )
            if path is not None and not path.parent.is_dir():
                raise NotFound("the folder of the socket does not exist", where=str(path.parent))
            self._serve(end, where, allowed)
        return where

    def _serve(self, end: _End, where: str, allowed: tuple[str, ...]) -> None:
        """It is recorded first, so that `live_unserve` ends whatever clients can connect to."""
        added = tuple(network for network in allowed if network not in end.allowed)
        served = end.served if where in end.served else (*end.served, where)
        self._save(end._replace(allowed=(*end.allowed, *added), served=served))
        try:
            for network in allowed:
                self._process.ask(f"allow {network}")
            # What is recorded may not be in force: an earlier call may have been killed, or another
            # program may have taken the address.
            self._process.ask(f"serve {where}")
        except MirrordError as error:
            # Without an answer clients may be able to connect by now.
            if not isinstance(error, Unreachable) or not self._process.is_running():
                self._save(end)
            raise

    def live_unserve(self) -> bool:
        """See `Live.live_unserve`."""
        with self._locked_end() as end:
            if self._process.is_running():
                self._process.ask("unserve")
            for address in end.served:
                remove_socket(address)
            self._save(end._replace(allowed=(), served=()))
        return bool(end.served)

    def live_mode(self, mode: Mode) -> None:
        """See `Live.live_mode`."""
        self._tell(f"mode {mode.value}")

    def live_control(self, controller: str) -> None:
        """See `Live.live_control`."""
        self._keep({"controller": controller})

    def live_window(self, window: str) -> None:
        """See `Live.live_window`."""
        if not re.fullmatch(r"[0-9]+|[0-9.e+-]+s", window):
            raise UsageError(f"'{window}' is not a window of semi-sync")
        self._keep({"window": window}, f"window {window}")

    def live_answer_within(self, within_us: int, lag_bytes: int | None) -> None:
        """See `Live.live_answer_within`."""
        lag = "" if lag_bytes is None else f" {lag_bytes:d}"
        self._tell(f"answer-within {within_us:d}{lag}")

    def live_merge(self, merge: bool) -> None:
        """See `Live.live_merge`."""
        self._tell(f"merge {'on' if merge else 'off'}")

    def live_traffic(self, merge_above_bytes: int, compress: bool, durable: bool) -> None:
        """See `Live.live_traffic`."""
        self._keep(
            {"merge_above": merge_above_bytes, "compress": compress, "durable": durable},
            f"merge-above {merge_above_bytes:d}",
            f"compress {'on' if compress else 'off'}",
            f"durable {'on' if durable else 'off'}",
        )

    def live_await_full(self, patience_s: float) -> bool:
        """See `Live.live_await_full`."""
        self._demand_end()
        return self._process.await_full(min(max(0.0, patience_s), AWAIT_S_MAX))

    def live_record(self, begin: bool) -> None:
        """See `Live.live_record`."""
        self._demand_end()
        self._process.ask("record" if begin else "record-end")

    def live_recorded(self) -> bytes:
        """See `Live.live_recorded`."""
        self._demand_end()
        return self._process.recorded()

    def live_resync(self) -> None:
        """See `Live.live_resync`."""
        self._tell("resync")

    def live_copy_rate(self, bytes_s: int) -> None:
        """See `Live.live_copy_rate`."""
        self._keep({"copy_rate": bytes_s}, f"copy-rate {bytes_s:d}")

    def live_verify(self, bytes_s: int) -> None:
        """See `Live.live_verify`."""
        self._tell(f"verify {bytes_s:d}")

    def live_verify_stop(self) -> None:
        """See `Live.live_verify_stop`."""
        self._tell("verify-stop")

    def live_repair(self) -> None:
        """See `Live.live_repair`."""
        self._tell("verify-resync")

    def live_break(self) -> None:
        """See `Live.live_break`."""
        with self._locked_end():
            self._process.break_off()

    def live_rejoin(self) -> None:
        """See `Live.live_rejoin`."""
        self._tell("rejoin")

    def live_reclaim(self) -> None:
        """See `Live.live_reclaim`."""
        self._tell("reclaim")

    def _keep(self, settings: dict[str, Any], *lines: str) -> None:
        """Record settings of the end, by field, and tell them to its process, if that runs."""
        with self._locked_end() as found:
            self._save(found._replace(**settings))
            if self._process.status().running:
                for line in lines:
                    self._process.ask(line)

    def _tell(self, line: str) -> None:
        with self._locked_end():
            self._process.ask(line)

    def live_remove(self) -> None:
        """See `Live.live_remove`."""
        end = None
        with suppress(Damaged):
            end = self._end()
        if end is None and not self._store.is_dir():
            return
        with self.lock("mirrord"):
            self._process.remove(_unit_of(end) if end else "")
            for address in end.served if end else ():
                remove_socket(address)
            left = [files.beside(Path(name)).name for name in files.interrupted(self._store)]
            for name in (*_FILES, *_TLS, *left, "config", "control", "log", "lock"):
                files.remove_file(f"{_LABEL}:REMOVE", self._store / name)
        for folder in (self._store, self._store.parent, self._store.parent.parent):
            if folder.name in ("live", ".mirrord") or folder.parent.name == ".mirrord":
                _remove_empty(folder)

    # Records

    def _end(self) -> _End | None:
        try:
            text = (self._store / "end.json").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            found = unsealed(text)
            lists = {key: tuple(found[key]) for key in ("served", "allowed")}
            end = _End(**{**found, **lists})
            for key, value in end._asdict().items():
                if not _is_like(value, _End._field_defaults.get(key, "")):
                    raise ValueError(f"{key} is {value!r}")
            return end
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(
                "the record of this end is malformed",
                where=str(self._store / "end.json"),
                why=str(error),
                hint="Put it back from a backup. Without one: 'mirrord delete "
                f"{MIRROR} --yes' (both images are kept), then create the mirror again, from the "
                "image that has the data.",
            ) from None

    def _demand_end(self) -> _End:
        end = self._end()
        if end is None:
            raise Refused(
                "this image is not mirrored yet",
                where=str(self),
                why="there are no records of the mirror beside it",
                hint=f"If it was never initialized: 'mirrord initialize {MIRROR}'. If they were "
                f"lost, with their disk for one: 'mirrord delete {MIRROR} --yes' (both images are "
                "kept), then create the mirror again, from the image that has the data.",
            )
        return end

    @contextmanager
    def _locked_end(self) -> Iterator[_End]:
        """The end, which no other process changes meanwhile."""
        with self.lock(f"mirrord {self._demand_end().name}"):
            yield self._demand_end()

    def _save(self, end: _End) -> None:
        """Record it, also for a process that is started later. What is recorded needs no space."""
        if end != self._end():
            self._record(end)
        self._process.write_config(self._lines(end))

    def _record(self, end: _End) -> None:
        data = json.dumps(sealed(end._asdict())).encode()
        files.write_atomic(f"{_LABEL}:RECORD", self._store / "end.json", data, mode=0o600)


def _is_like(value: Any, usual: Any) -> bool:
    """Whether a value read from a record has the type of the usual one."""
    return type(value) is type(usual) and (
        not isinstance(value, tuple) or all(isinstance(each, str) for each in value)
    )


def _unit_of(end: _End) -> str:
    """Other clients of this host may have mirrors of the same name here."""
    return f"{end.name}-{end.site}-{end.mirror_id[:_UNIT_ID]}"


def _remove_empty(folder: Path) -> None:
    try:
        files.remove_directory(f"{_LABEL}:REMOVE", folder)
    except OSError:
        return  # others have records there
