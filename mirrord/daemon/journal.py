"""The daemon's log: text or lines of JSON, with the journal's priorities under systemd."""

from __future__ import annotations

import json
import logging
import os
import sys

from mirrord.core.text import harmless

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}

log = logging.getLogger("mirrord")


class _Format(logging.Formatter):
    def __init__(self, *, as_json: bool, to_journal: bool) -> None:
        super().__init__()
        self._as_json, self._to_journal = as_json, to_journal

    def format(self, record: logging.LogRecord) -> str:
        text = " ".join(record.getMessage().split())
        # A name or a program's output must not send escape sequences to a terminal.
        text = harmless(text)
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({type(record.exc_info[1]).__name__}: {record.exc_info[1]})"
        facts = getattr(record, "facts", {})
        level = record.levelname.lower()
        if self._as_json:
            text = json.dumps({"at": self._moment(record), "level": level, "text": text, **facts})
        elif not self._to_journal:
            text = f"{self._moment(record)} {level:7} {text}"
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{text}" if self._to_journal else text

    def _moment(self, record: logging.LogRecord) -> str:
        whole = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        return f"{whole}.{int(record.msecs):03d}"


def begin(*, as_json: bool) -> None:
    """Write the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format(as_json=as_json, to_journal="JOURNAL_STREAM" in os.environ))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def say(level: str, text: str, **facts: object) -> None:
    """One line. facts: for the JSON form."""
    number = {"info": logging.INFO, "warning": logging.WARNING}.get(level, logging.ERROR)
    log.log(number, text, extra={"facts": facts})
