"""What happens to a mirror: each event is a function of the game, chosen with a weight."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from tests.soak.commands import NAME, Outcome, has
from tests.soak.disks import Disk, call
from tests.soak.game import Game
from tests.soak.history import Violation
from tests.support.btrfs import make_subvolume

Event = Callable[[Game], None]

#: Verbs with their weights; those with a star switch a live volume.
_VERBS = {
    ("update",): 10,
    ("break",): 5,
    ("break", "--test"): 1,
    ("break", "--end-test"): 1,
    ("resync", "--yes"): 8,
    ("reverse", "--yes"): 10,
    ("restore", "--all", "--yes"): 8,
    ("restore", "*"): 2,
    ("restore", "--all", "--yes", "--snapshot", "*"): 3,
    ("abort",): 1,
    ("abort", "--hard"): 1,
    ("quiesce",): 1,
    ("resume",): 2,
    ("prune",): 3,
    ("delta",): 1,
    ("status",): 1,
    ("explain",): 1,
    ("monitor",): 1,
    ("break", "--snapshot", "*"): 2,
}
_SWITCHES = ("resync", "reverse", "restore", "break")
_FORCED = ("resync", "reverse", "restore")


def _words(game: Game, *, switching: bool = False) -> tuple[str, ...]:
    """A command that this version has, with its star filled in."""
    chance = game.chance
    choices = {
        words: weight
        for words, weight in _VERBS.items()
        if (not switching or words[0] in _SWITCHES)
        and (words[:2] != ("break", "--snapshot") or has("break", "--snapshot"))
    }
    [words] = chance.choices(list(choices), list(choices.values()))
    filled = [words[0], NAME, *words[1:]]
    if filled[-1] == "*":
        filled[-1] = _a_file(game) if "--snapshot" not in words else _a_snapshot(game)
    forced = words[0] in _FORCED and "--yes" in words and has(words[0], "--force")
    if forced and chance.random() < 0.5:
        filled.append("--force")
    return tuple(filled)


def _a_file(game: Game) -> str:
    return f"docs/file{game.chance.randrange(20)}"


def _a_snapshot(game: Game) -> str:
    found = sorted(path.name for path in game.folder.glob("?/**/.mirrord/*/snapshots/mirrord.*"))
    return game.chance.choice(found) if found else "none"


def _switch(game: Game, words: tuple[str, ...], fault: tuple[str, int] | None = None) -> Outcome:
    """Run a verb; where it is refused because files are open, close them and try again."""
    done = game.commands.run(*words, fault=fault)
    if not done.good and "open" in done.output and game.people and game.chance.random() < 0.7:
        game.stop_writers()
        done = game.commands.run(*words)
        game.start_writers()
    return done


def verb(game: Game) -> None:
    """A verb while people write."""
    game.start_writers()
    _pause(game, 0.4)
    _switch(game, _words(game))
    _pause(game, 0.3)


def verbs_in_peace(game: Game) -> None:
    """A few verbs in a row, with changes between them."""
    for _ in range(game.chance.randint(2, 4)):
        game.work()
        game.commands.run(*_words(game))


def slow_verb(game: Game) -> None:
    """A verb that switches, slowed down, while people write: they get in between its steps."""
    game.start_writers(4)
    _pause(game, 0.3)
    _switch(game, _words(game, switching=True), ("slow", game.chance.randint(1, 15)))
    _pause(game, 0.3)


def failing_step(game: Game) -> None:
    """A verb that dies or fails at one of its steps; then people go on working."""
    mode = game.chance.choice(("kill", "kill", "kill", "eio", "enospc"))
    if game.chance.random() < 0.6:
        game.start_writers()
        _pause(game, 0.3)
    game.commands.run(
        *_words(game, switching=game.chance.random() < 0.8), fault=(mode, _step(game))
    )
    _aftermath(game)


def killed(game: Game) -> None:
    """A verb that is killed at any moment."""
    game.start_writers()
    after_s = game.chance.uniform(0.2, 0.9)

    def kill(process: subprocess.Popen[bytes]) -> None:
        time.sleep(after_s)
        process.send_signal(game.chance.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))

    game.commands.run(*_words(game, switching=game.chance.random() < 0.7), during=kill)
    _aftermath(game)


def _step(game: Game) -> int:
    return int(game.chance.triangular(1, 45, 8))


def _aftermath(game: Game) -> None:
    """Hours of work between a crash and what is done about it."""
    if game.chance.random() < 0.8:
        game.start_writers()
        _pause(game, 0.5)
        game.work()
    if game.chance.random() < 0.5:
        game.stop_writers()
    if game.chance.random() < 0.3 and game.commands.daemon is None:
        game.commands.start_daemon()
        game.history.add("the daemon was started")
        _pause(game, 1.0)
    for _ in range(game.chance.randint(0, 2)):
        _switch(game, _words(game))


def power_cut(game: Game) -> None:
    """The power fails while a verb runs, and the host comes back."""
    game.start_writers()
    after_s = game.chance.uniform(0.25, 0.8)

    def cut(process: subprocess.Popen[bytes]) -> None:
        time.sleep(after_s)
        game.cut_power(process)

    game.commands.run(*_words(game, switching=game.chance.random() < 0.7), during=cut)
    _aftermath(game)


def full_disk(game: Game) -> None:
    """No room at one end: verbs fail, and what is there stays."""
    disk: Disk = game.chance.choice(game.disks)
    if game.chance.random() < 0.5:
        game.start_writers(2)
    fill = disk.fill_data if game.chance.random() < 0.5 else disk.fill_metadata
    game.history.add(f"{disk.name} is filled ({fill.__name__}): {fill()}")
    for _ in range(game.chance.randint(1, 4)):
        if game.chance.random() < 0.3:
            game.work()
        game.commands.run(*_words(game, switching=game.chance.random() < 0.5))
    if game.chance.random() < 0.7:
        disk.unfill()
        game.history.add(f"{disk.name} has room again")


def daemon(game: Game) -> None:
    """The daemon starts, ends, is killed, or dies at one of its steps."""
    if game.commands.daemon is not None:
        number = game.chance.choice((signal.SIGTERM, signal.SIGKILL))
        game.commands.stop_daemon(number)
        return
    fault = ("kill", game.chance.randint(1, 60)) if game.chance.random() < 0.4 else None
    ready = game.commands.start_daemon(fault)
    game.history.add(f"the daemon {'runs' if ready else 'died'} (fault {fault})")
    verb(game)


def catalogue(game: Game) -> None:
    """The catalogue is lost, or that of last night is put back."""
    game.commands.stop_daemon()
    if game.chance.random() < 0.5:
        shutil.rmtree(game.state, ignore_errors=True)
        game.history.add("the catalogue was deleted")
    else:
        backup = game.chance.choice(game.backups)
        if not (backup / "state").is_dir():
            return
        shutil.rmtree(game.state, ignore_errors=True)
        shutil.copytree(backup / "state", game.state)
        game.history.add(f"the catalogue of {backup.name} was put back")
    if game.chance.random() < 0.3:
        _definition(game)
    _aftermath(game)


def _definition(game: Game) -> None:
    backup = game.chance.choice(game.backups)
    shutil.copy(backup / "etc/mirrors.d" / game.definition.name, game.definition)
    game.history.add(f"the definition of {backup.name} was put back")


def definition(game: Game) -> None:
    """The definition of last night is put back, perhaps from before a reverse."""
    game.commands.stop_daemon()
    _definition(game)
    _aftermath(game)


def backup(game: Game) -> None:
    """The nightly backup of the host."""
    game.commands.stop_daemon()
    game.back_up()
    game.history.add(f"{game.backups[-1].name} taken")


def volume_swapped(game: Game) -> None:
    """Somebody moves the source away and puts an empty volume in its place."""
    if game.moved is not None or game.home.is_symlink() or not game.home.is_dir():
        return
    if game.commands.status().get("state") != "mirrored":
        return
    game.commands.run("update", NAME)
    game.stop_writers()
    there = game.model.look(game.destination_disk)
    moved = game.home.with_name(f"home.old{game.events}")
    game.home.rename(moved)
    make_subvolume(game.home)
    game.moved = moved
    game.history.add(f"home was moved to {moved.name}, an empty volume takes its place")
    for number in range(game.chance.randint(1, 6)):
        with suppress(OSError):  # (its disk may be full)
            (game.home / f"other{number}").write_text("of another volume")
        game.commands.run("update", NAME)
    still = game.model.look(game.destination_disk)
    if gone := sorted(set(there) - set(still)):
        raise Violation(
            "LOST",
            f"{len(gone)} lines are gone from the destination ({gone[0]}, …): "
            "the copies of the volume that was moved away were replaced by an empty one",
        )


def damage(game: Game) -> None:
    """Somebody deletes or empties what mirrord keeps beside the destination."""
    view = game.view if game.home.is_dir() and not game.home.is_symlink() else game.home
    store = view.parent / ".mirrord" / view.name
    shown = view.resolve() if view.is_symlink() else None
    what = game.chance.choice(("view", "mirror.json", "transfer.json", "shown"))
    stores = [path.parent / ".mirrord" / path.name / "snapshots" for path in (game.home, game.view)]
    common = [set(os.listdir(each)) if each.is_dir() else set() for each in stores]
    if what in ("transfer.json", "shown") and len(common[0] & common[1]) < 2:
        return  # without the only common one there would be no way but a new mirror
    if what == "view" and view.is_symlink():
        view.unlink()
    elif what == "mirror.json" and (store / what).exists():
        with suppress(OSError):  # (its disk may be full: then it is empty)
            (store / what).write_text(game.chance.choice(("", "{", json.dumps({"id": "x"}))))
    elif what == "transfer.json" and shown is not None and (shown.parent / what).exists():
        record = shown.parent / what
        game.damaged.setdefault(record, record.read_text())
        with suppress(OSError):
            record.write_text(game.chance.choice(("", "{}")))
    elif what == "shown" and shown is not None and shown.is_dir():
        call("btrfs", "subvolume", "delete", shown)
    else:
        return
    game.history.add(f"damaged: {what} of {view}")
    for _ in range(game.chance.randint(1, 3)):
        words = ("break", NAME) if game.chance.random() < 0.5 else _words(game)
        game.commands.run(*words)


def remount(game: Game) -> None:
    """The host restarts in an orderly way."""
    game.remount("a restart of the host")


def _pause(game: Game, most_s: float) -> None:
    time.sleep(game.chance.uniform(most_s / 4, most_s))


EVENTS: dict[Event, int] = {
    verb: 14,
    verbs_in_peace: 6,
    slow_verb: 14,
    failing_step: 18,
    killed: 12,
    power_cut: 5,
    full_disk: 5,
    daemon: 6,
    catalogue: 5,
    definition: 2,
    backup: 3,
    volume_swapped: 3,
    damage: 4,
    remount: 2,
}


def play(game: Game, events: int, *, until_s: float | None = None) -> None:
    """So many events, with moments of peace between some of them, or until it is time to end."""
    game.begin()
    for number in range(events):
        if until_s is not None and time.monotonic() > until_s:
            break
        game.events = number + 1
        [event] = game.chance.choices(list(EVENTS), list(EVENTS.values()))
        game.history.add(f"--- event {number + 1}: {event.__name__}")
        event(game)
        game.check()
        if game.chance.random() < 0.45:
            game.calm()
        elif game.chance.random() < 0.5:
            game.stop_writers()
    game.calm()
    game.inspect_disks()
