"""`Service`: runs every command on this host. The only way from the CLI to the engine.

Commands raise `MirrordError` and nothing else (bugs apart). Each loads only the part of the engine
that it needs: a command's start is part of its manners.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from mirrord.control.command import Call
from mirrord.control.opening import Opener
from mirrord.core.errors import MirrordError
from mirrord.core.model import Definition
from mirrord.core.results import Result
from mirrord.core.states import Verb
from mirrord.core.verification import parse_mode
from mirrord.engine.direction import Turned
from mirrord.engine.mirror import Mirror, one_line
from mirrord.system.explain import explained

R = TypeVar("R")


class Service(Opener):
    """Runs commands in this process."""

    def run(self, call: Call[R]) -> R:
        """Run a command; raises `MirrordError`."""
        return call.command.work(self, **call.arguments)

    def update_known(self, definition: Definition) -> Result:
        """Update by a definition that was read earlier, even if its file changed since; not if its
        volumes did.
        """
        from mirrord.engine import update

        with self.recorded(Verb.UPDATE, definition), explained():
            turned = self._source_of(definition.id) not in ("", definition.source_site)
            if not turned and not self._moved(definition):  # no reverse or 'change-source' since
                with suppress(Turned):
                    return self.at(definition, update.update)
            return self.look(definition.name, update.update)

    def _moved(self, definition: Definition) -> bool:
        """Whether the file of the same mirror has other volumes now."""
        try:
            now = self.definitions.both(definition.name).get(definition.source_site)
        except MirrordError:
            return False
        return now is not None and now.id == definition.id and now.pairs != definition.pairs

    def verify_known(self, definition: Definition) -> Result:
        """Verify as a definition says that the service does."""
        from mirrord.engine.verify import verify

        mode, parts = parse_mode(definition.verify.mode)

        def work(mirror: Mirror) -> Result:
            try:
                with mirror.waiting.cancellable(self.may_verify):
                    return verify(mirror, mode, parts=parts)
            except MirrordError as error:
                if error.code not in ("aborted", "busy"):
                    text = f"the scheduled verification failed: {one_line(error)}"
                    mirror.catalogue.add_event(mirror.id, "warning", text)
                raise

        return self.look(definition.name, work)

    def recover(self, name: str) -> str:
        """Finish what a crash interrupted on this mirror; returns that verb, or ""."""
        from mirrord.engine.recovery import recover
        from mirrord.engine.stillpaused import resume

        def work(mirror: Mirror) -> str:
            operation = mirror.catalogue.operation(mirror.id)
            if operation is None:
                resume(mirror)
                return ""
            with mirror.hold(Verb.ABORT):
                recover(mirror)
            return operation.verb

        return self.look(name, work)

    def resume_left(self, name: str) -> None:
        """Resume what a pause of this mirror has left paused."""
        from mirrord.engine.stillpaused import resume

        self.look(name, resume)
