"""`hook`: runs a program with the argument `pause`, and afterwards with `resume`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mirrord.core.errors import MirrordError
from mirrord.pausers.contract import Pauser
from mirrord.system import command

_RESUME_S = 60.0


class HookPauser(Pauser):
    """argument: the absolute path of a program, with its first arguments."""

    def __init__(self, kind: str, argument: str) -> None:
        super().__init__(kind, argument)
        self._words = shlex.split(argument)
        if not self._words or not self._words[0].startswith("/"):
            raise ValueError(
                "expected the absolute path of a program, such as hook:/usr/local/sbin/pause-db"
            )

    def lock_path(self) -> Path | None:
        """See `Pauser.lock_path`."""
        return Path(self._words[0])

    def check(self, written: Sequence[Path]) -> None:
        """See `Pauser.check`."""
        command.find(self._words[0], hint="Correct the path in the definition, or the program.")

    def pause(self, timeout_s: float) -> None:
        """See `Pauser.pause`."""
        self._run("pause", timeout_s)

    def resume(self) -> None:
        """See `Pauser.resume`."""
        self._run("resume", _RESUME_S)

    def _run(self, word: str, timeout_s: float) -> None:
        try:
            # It goes on when this process is killed. Until it has ended, nobody else calls it.
            words = [*self._words, word]
            done = command.run(words, timeout_s=timeout_s, hold=self.held_lock)
        except (MirrordError, OSError) as error:
            raise self.failed(f"the program failed to {word}", why=str(error), hint=_FIX) from error
        if done.status:
            why = f"'{self._words[0]} {word}' {done.ending()}"
            raise self.failed(f"the program failed to {word}", why=why, hint=_FIX)


_FIX = "Fix the program; it is called with the argument 'pause', and then with 'resume'."
