"""Where the real traces are, if they are here; what ran without them is said at the end."""

from __future__ import annotations

import os
from pathlib import Path


def _find() -> Path | None:
    beside = Path(__file__).parents[2].parent / "shared" / "traces"
    folder = Path(os.environ.get("MIRRORD_TRACES", beside))
    return folder if (folder / "README.md").is_file() else None


#: The folder of real traces (README.md in it says what they are); None: there is none here.
TRACES_FOLDER = _find()
#: Names of the real traces that tests used.
_used: set[str] = set()
_generated: set[str] = set()


def real(name: str) -> Path:
    """A real trace, which is noted as used."""
    assert TRACES_FOLDER is not None, "there are no real traces here"
    path = TRACES_FOLDER / name
    assert path.is_file(), f"{path} is missing"
    _used.add(name)
    return path


def generated(name: str) -> None:
    """Notes that a generated workload took the place of a real trace."""
    _generated.add(name)


def summary() -> list[str]:
    """What ran, for the terminal; nothing if no test was about traces."""
    lines = []
    if _used:
        lines.append(f"real, of {TRACES_FOLDER}: {', '.join(sorted(_used))}")
    if _generated:
        lines.append(f"generated, with known answers: {', '.join(sorted(_generated))}")
        if TRACES_FOLDER is None:
            lines.append("no real ones (../shared/traces or MIRRORD_TRACES): not tested on them")
    return lines
