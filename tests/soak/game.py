"""One seed: two file systems, a mirror, and what happens to it; in the end all is looked at."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.soak.commands import NAME, Commands, Outcome, has
from tests.soak.disks import Disk, call
from tests.soak.history import History, Violation
from tests.soak.model import Model
from tests.soak.people import People, a_file
from tests.support.btrfs import make_subvolume

SIZE_MIB = 256
#: A way that a message names may lead to another one; not to many.
_WAYS = 8


class Game:
    """What events need: the volumes, the people, the commands, the model."""

    def __init__(self, folder: Path, seed: int, history: History) -> None:
        self.folder, self.history = folder, history
        self.chance = random.Random(seed)
        self.source_disk = Disk(folder, "s", SIZE_MIB)
        try:
            self.destination_disk = Disk(folder, "d", SIZE_MIB)
        except BaseException:
            self.source_disk.detach()
            raise
        self.disks = (self.source_disk, self.destination_disk)
        #: The two paths that people work at. Which one is live depends on the mirror.
        self.home = self.source_disk.mount / "home"
        self.view = self.destination_disk.mount / "home" / "current"
        (folder / "host").mkdir()
        self.commands = Commands(folder / "host", history)
        self.people = People(self.chance)
        self.model = Model(self.people, self.disks)
        self.events = 0
        self._work = 0
        #: Older copies of the catalogue and the definition, as a backup of the host has them.
        self.backups: list[Path] = []
        #: Volumes that were moved away at the source, by the path they came from.
        self.moved: Path | None = None
        #: Records that people damaged, and what they held before.
        self.damaged: dict[Path, str] = {}

    @property
    def definition(self) -> Path:
        return self.commands.home / "etc/mirrors.d" / f"{NAME}.toml"

    @property
    def state(self) -> Path:
        return self.commands.home / "state"

    def begin(self) -> None:
        """A volume with something in it, mirrored."""
        make_subvolume(self.home)
        (self.home / "docs").mkdir()
        for number in range(20):
            data = self.chance.randbytes(self.chance.randrange(40_000))
            (self.home / "docs" / f"file{number}").write_bytes(data)
        ends = [f"btrfs:{self.home}", f"btrfs:{self.view.parent}"]
        keep = ["--keep-source", "3", "--keep-destination", "5"]
        for words in (["create", NAME, *ends, *keep], ["initialize", NAME]):
            if not (done := self.commands.run(*words)).good:
                raise Violation("begin", done.output)
        self.back_up()

    def back_up(self) -> None:
        """A copy of the definition and the catalogue, as a nightly backup takes it."""
        to = self.folder / f"backup{len(self.backups)}"
        to.mkdir()
        for name in ("etc", "state"):
            if (self.commands.home / name).is_dir():
                shutil.copytree(self.commands.home / name, to / name)
        self.backups.append(to)

    def live_paths(self) -> list[Path]:
        """Those of the two paths that are writable volumes now."""
        return [
            path
            for path in (self.home, self.view)
            if path.is_dir() and not os.statvfs(path).f_flag & os.ST_RDONLY and _writable(path)
        ]

    def work(self) -> None:
        """Somebody changes something that is no line: new files, and some deleted."""
        for volume in self.live_paths():
            self._work += 1
            a_file(volume, f"work{self._work}", self.chance.randbytes(30_000))
            docs = sorted((volume / "docs").glob("*")) if (volume / "docs").is_dir() else []
            if len(docs) > 5:
                try:
                    self.chance.choice(docs).unlink()
                except OSError:
                    pass

    def start_writers(self, most: int = 3) -> None:
        """Let people write to what is live, and sometimes try what is not."""
        for _ in range(self.chance.randint(1, most)):
            paths = self.live_paths()
            if not paths or self.chance.random() < 0.1:
                paths = [self.home, self.view]
            self.people.start(self.chance.choice(paths))

    def stop_writers(self, *, kill: bool = False) -> None:
        if self.people:
            self.history.add(f"writers end: {self.people.stop(kill=kill)}")

    def check(self) -> None:
        """What holds at any moment."""
        count = self.model.check_lines()
        self.model.check_snapshots()
        self.history.add(
            f"{count} acknowledged lines are all there"
            + (f", {len(self.model.retired)} of them retired" if self.model.retired else "")
        )

    # Peace.

    def calm(self) -> None:
        """End what disturbs, and bring the mirror back to work by what its messages name."""
        self.stop_writers()
        for disk in self.disks:
            disk.unfill()
            if disk.read_only():
                self.remount(f"{disk.name} had become read-only")
        self.check()
        self._in_step(self._to_an_update())
        self.work()
        self._in_step(self._to_an_update())
        self.model.check_leftovers([self._store(self.home), self._store(self.view)])

    def _in_step(self, done: Outcome) -> None:
        """After an update that went well, while nobody writes: the destination is as the source."""
        self.check()
        status = self.commands.status()
        if status.get("state") != "mirrored":
            raise Violation("status", f"after a successful update: {status.get('state')!r}")
        source, destination = self._ends(status)
        view = destination if destination == self.home else self.view
        self.model.check_view(view)
        live = source if source == self.home else self.view
        differing = call("diff", "-rq", "--no-dereference", f"{live}/.", f"{view}/.")
        if differing.returncode != 0:
            seen = differing.stdout[:1000] + differing.stderr[:1000]
            raise Violation("view", f"{view} differs from {live}: {seen}, after: {done.output}")
        self.history.add(f"calm: {view} shows {live}")

    def _ends(self, status: dict[str, object]) -> tuple[Path, Path]:
        source, destination = (
            Path(str(status[end]).removeprefix("btrfs:")) for end in ("source", "destination")
        )
        return source, destination

    def _store(self, path: Path) -> Path:
        return path.parent / ".mirrord" / path.name

    def _to_an_update(self) -> Outcome:
        """Update; where that is refused, go a way that the message names, until it works."""
        gone: list[str] = []
        said = self.commands.run("update", NAME)
        heard = said.output
        while not (said.good and said.words[0] == "update"):
            died = self.commands.daemon is not None and "stopped before it answered" in said.output
            if died:  # at the step that it was to die at
                self.commands.stop_daemon()
            way = ("update", NAME) if said.good or died else self._way(said, gone)
            if way is None and said.words[0] != "update":
                way = ("update", NAME)  # that one led nowhere: perhaps another does
            if way is None and (self._choose_source(heard) or self._undo_people(heard)):
                gone.clear()
                heard = ""
                way = ("update", NAME)
            if way is None or len(gone) > _WAYS:
                raise Violation("stuck", f"after {', '.join(gone) or 'nothing'}: {said.output}")
            if way[0] != "update":
                gone.append(" ".join(way))
            said = self.commands.run(*way)
            heard += said.output
        return said

    def _way(self, said: Outcome, gone: list[str]) -> tuple[str, ...] | None:
        """One of the ways that a message names and that was not gone yet."""
        ways = [way for named in said.ways() if (way := confirmed(named)) is not None]
        fresh = [way for way in ways if " ".join(way) not in gone]
        return self.chance.choice(fresh) if fresh else None

    def _choose_source(self, heard: str) -> bool:
        """Say that the mirror was reversed, where a message asks for that."""
        if "record which site is the source" not in heard:
            return False
        source, _ = self._ends(self.commands.status())
        site = "secondary" if source == self.home else "primary"
        return self.commands.run("takeover", NAME, "--source", site).good

    def _undo_people(self, heard: str) -> bool:
        """Put back what people damaged or moved away; whether there was anything."""
        if self.damaged:
            for record, text in self.damaged.items():
                if record.parent.is_dir():
                    with suppress(OSError):  # (its disk may be full)
                        record.write_text(text)
            self.damaged.clear()
            self.history.add("people put damaged records back from a backup", heard)
            return True
        if self.moved is None:
            return False
        other = self.home.with_name(f"other{self.events}.{time.monotonic_ns()}")
        if os.path.lexists(self.home):
            self.home.rename(other)
        self.moved.rename(self.home)
        self.history.add(f"people put {self.moved.name} back as home", heard)
        self.moved = None
        return True

    # Disks.

    def remount(self, why: str) -> None:
        self.stop_writers()
        self.commands.stop_daemon()
        for disk in self.disks:
            disk.detach()
        for disk in self.disks:
            disk.attach()
        self.history.add(f"both file systems mounted again: {why}")

    def cut_power(self, process: subprocess.Popen[bytes] | None) -> None:
        """All stops, and the disks hold what they hold; the host starts again from that."""
        daemon = self.commands.daemon
        running = [each for each in (process, daemon) if each is not None and each.poll() is None]
        for each in running:
            each.send_signal(signal.SIGSTOP)
        self.people.freeze()
        time.sleep(0.2)  # what the disks are doing now is done then
        copies = [disk.image.with_suffix(".cut") for disk in self.disks]
        for disk, copy in zip(self.disks, copies, strict=True):
            disk.copy(copy)
        for each in running:
            each.kill()
            each.wait()
        self.commands.daemon = None
        self.stop_writers(kill=True)
        for disk, copy in zip(self.disks, copies, strict=True):
            disk.detach()
            copy.replace(disk.image)
        for disk in self.disks:
            disk.attach()
        self.history.add("the power was cut; both file systems mounted again")

    def inspect_disks(self) -> None:
        """An independent look at both file systems."""
        self.stop_writers()
        self.commands.stop_daemon()
        for disk in self.disks:
            disk.scrub()
            disk.detach()
        try:
            for disk in self.disks:
                disk.check()
        finally:
            for disk in self.disks:
                disk.attach()
        self.history.add("btrfs check and scrub found nothing")

    def end(self) -> None:
        """Leave nothing running or mounted."""
        self.people.stop(kill=True)
        daemon = self.commands.daemon
        if daemon is not None and daemon.poll() is None:
            daemon.kill()
            daemon.wait()
        for disk in self.disks:
            disk.detach()


def confirmed(way: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command as an administrator types it who agrees; None: not one for this mirror."""
    verb, rest = way[0], way[1:]
    if verb not in _CONFIRM or "SITE" in rest or not has(verb):
        return None
    words = [verb, *(word for word in rest if word not in (NAME, "NAME", "--yes"))]
    words.insert(1, NAME)
    if _CONFIRM[verb] or (verb == "resume-operation" and has(verb, "--yes")):
        words.append("--yes")
    return tuple(words)


#: The verbs that lead on, and whether they ask.
_CONFIRM = {
    "resync": True,
    "reverse": True,
    "restore": True,
    "break": False,
    "abort": False,
    "resume": False,
    "resume-operation": False,
    "initialize": False,
    "update": False,
    "prune": False,
    "change-source": True,
    "takeover": False,
}


def _writable(volume: Path) -> bool:
    """Whether it is a live volume: a link to a snapshot is not."""
    return not volume.is_symlink()


@contextmanager
def game(seed: int, history: History, *, keep: bool = False) -> Iterator[Game]:
    """A game in a folder of its own; everything is gone afterwards, unless the images are kept."""
    folder = Path(tempfile.mkdtemp(prefix="mirrord-soak-"))
    made: Game | None = None
    try:
        made = Game(folder, seed, history)
        yield made
    finally:
        if made is not None:
            made.end()
        if not keep:
            shutil.rmtree(folder)
