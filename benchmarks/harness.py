"""Shared by all measurements: rows with a target, facts about the machine, loop file systems."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mirrord.system.paths import Paths
from tests.support.verbs import Service

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One result. `better` is "<=" or ">="; peer: what it was compared with, or ""."""

    name: str
    value: float
    unit: str
    better: str
    target: float
    peer: str = ""
    peer_value: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.value <= self.target if self.better == "<=" else self.value >= self.target


def table(rows: list[Row]) -> str:
    """The rows as a text table."""
    cells = [("", "mirrord", "target", "", "peer")]
    for row in rows:
        peer = f"{row.peer}: {row.peer_value:.4g} {row.unit}" if row.peer_value is not None else ""
        cells.append(
            (
                row.name,
                f"{row.value:.4g} {row.unit}",
                f"{row.better} {row.target:g} {row.unit}",
                "reached" if row.reached else "MISSED",
                f"{peer}  {row.note}".strip(),
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = []
    for line in cells:
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=False)]
        lines.append("  ".join([*padded, line[4]]).rstrip())
    return "\n".join(lines)


def save(name: str, rows: list[Row]) -> Path:
    """Save the rows as JSON, with the facts needed to judge them."""
    commit = run("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip()
    facts = {
        "benchmark": name,
        "commit": commit,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average": os.getloadavg(),
        "btrfs_progs": run("btrfs", "--version").split()[-1],
        "rows": [asdict(row) | {"reached": row.reached} for row in rows],
    }
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    return path


def _field(file: str, name: str) -> str:
    """The first value of that name in a file of /proc, or ""."""
    with Path(file).open(encoding="utf-8") as lines:
        found = (line.partition(":")[2].strip() for line in lines if line.startswith(name))
        return next(found, "")


def run(*arguments: str | Path) -> str:
    """Run a program; its output. Raises when it fails."""
    return subprocess.run(
        [str(word) for word in arguments], check=True, capture_output=True, text=True
    ).stdout


def need(program: str, package: str) -> str:
    """The path of a peer; installed from Debian's packages if missing."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin")
    if found is None:
        print(f"installing Debian's {package} to compare with", flush=True)
        run("apt-get", "-q", "update")
        run("apt-get", "-q", "install", "-y", "--no-install-recommends", package)
        found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found is not None, f"{package} does not have {program}"
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder on the ordinary disk."""
    with tempfile.TemporaryDirectory(prefix="mirrord-bench-", dir="/var/tmp") as name:
        yield Path(name)


@contextmanager
def filesystem(inside: Path, name: str, size_gib: int) -> Iterator[Path]:
    """A btrfs file system on a sparse image, mounted below `inside`."""
    image, mount = inside / f"{name}.img", inside / name
    with image.open("wb") as file:
        file.truncate(size_gib << 30)
    mount.mkdir()
    run("mkfs.btrfs", "-q", image)
    run("mount", "-t", "btrfs", "-o", "loop", image, mount)
    try:
        yield mount
    finally:
        # Never leave it mounted below a folder that is about to be removed recursively.
        if subprocess.run(["umount", mount], capture_output=True).returncode != 0:
            run("umount", "--lazy", mount)
        image.unlink()


def service(inside: Path) -> Service:
    """A service with its own folders."""
    home = inside / "mirrord"
    return Service(Paths(home / "etc", home / "state", home / "run"))


def environment(inside: Path) -> dict[str, str]:
    """For the command line on the same folders; byte code is cached, as in an installation."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "MIRRORD_HOME": str(inside / "mirrord")}


def timed(work: Callable[[], object]) -> float:
    """The time that it takes, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def mirrord_command(*words: str) -> list[str]:
    """The installed program, as started by a user."""
    return [str(Path(sys.executable).with_name("mirrord")), *words]
