"""How busy the disks are: the kernel's pressure stall information (PSI)."""

from __future__ import annotations

from pathlib import Path

_IO = Path("/proc/pressure/io")


def io_pressure() -> float | None:
    """Share of the last ten seconds, in percent, in which some task waited for storage; None when
    the kernel does not report it.
    """
    try:
        words = _IO.read_text(encoding="ascii").split()
    except OSError:
        return None
    for word in words[:5]:
        name, _, value = word.partition("=")
        if name == "avg10":
            return float(value)
    return None
