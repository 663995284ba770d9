"""The progress line, at a real terminal and where there is none."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

_WORKS = """
import sys, time
from mirrord.cli.progress import ProgressLine
with ProgressLine(at_once=True) as line:
    line.say(lambda: "begun " + "x" * 500)
    line.say(lambda: sys.exit("too early to say it again"))
    time.sleep(0.3)
    line.replaying("web", 50, 200)
line.say(lambda: "not yet")
print("done", file=sys.stderr)
"""


def at_a_terminal(code: str) -> str:
    """What a program shows at a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    made = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=theirs,
        stdin=theirs,
        env={**os.environ, "COLUMNS": "80"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is gone
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert made.wait(timeout=90) == 0
    return shown.decode()


def test_a_line_is_written_over_fits_and_goes_away() -> None:
    begun, replayed, end = at_a_terminal(_WORKS).split("\x1b[K")[1:]
    assert begun.startswith("begun x") and len(begun.rstrip("\r")) == 79
    assert replayed.rstrip("\r") == "web: replayed 50 of 200 records (25 %)"
    assert end.strip() == "done"


def test_without_a_terminal_there_is_no_line() -> None:
    done = subprocess.run([sys.executable, "-c", _WORKS], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "done\n")


def test_long_work_shows_how_far_it_is(tmp_path: Path) -> None:
    # (So many that a quick machine is busy for a second, too: of less there is no line.)
    made = f"{tmp_path}/made.parquet"
    words = ["trace", "generate", "files", "--records", "30000000", "-o", made]
    shown = at_a_terminal(f"import sys; from mirrord.cli.main import run; sys.exit(run({words!r}))")
    assert re.search(r"\d+ % of .*, [\d,]+ records, [\d.]+ million/s", shown)
