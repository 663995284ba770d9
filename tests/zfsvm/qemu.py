"""QEMU 10 for the machine: the host's own, or Debian's packages unpacked into the cache.

Debian 12's own QEMU 7.2 double-faults now and then. Nothing of the host's apt is changed: its
archive and keys are used with an own configuration, lists and cache (all below `folder`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "qemu-system-x86_64"
_NEEDED = 10
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NoMachine(Exception):
    """The virtual machine cannot be had here, and why."""


@dataclass(frozen=True)
class Qemu:
    """How QEMU is called: the first words of its command line, and its environment."""

    words: tuple[str, ...]
    environment: dict[str, str]


def run(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command says; `NoMachine` with its last words when it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in words],
            env=env,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise NoMachine(f"{words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise NoMachine(f"'{' '.join(map(str, words[:6]))} …' failed: {last}")
    return done.stdout


def archive() -> tuple[str, str]:
    """Debian's archive as this machine's apt reaches it, and the machine's release by name."""
    known = run("apt-get", "indextargets", "--format", "$(REPO_URI)")
    found = [line for line in known.splitlines() if re.search(r"/debian/?$", line)]
    if not found:
        raise NoMachine("this machine's apt knows no archive of Debian (…/debian)")
    said = Path("/etc/os-release").read_text()
    codename = re.search(r'^VERSION_CODENAME="?([a-z]+)', said, re.MULTILINE)
    return found[0].rstrip("/"), codename[1] if codename else ""


def find(folder: Path) -> Qemu:
    """The host's QEMU when it is recent enough, else that which `unpack` left in `folder`."""
    own = shutil.which(_PROGRAM)
    if own is not None and shutil.which("qemu-img") and _version(Qemu((own,), {})) >= _NEEDED:
        return Qemu((own,), dict(os.environ))
    root = folder / "qemu"
    libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    path = ":".join(map(str, libraries))
    share = [root / "usr/share/qemu", root / "usr/share/seabios"]
    words = [str(root / "usr/bin" / _PROGRAM)]
    for place in share:
        words += ["-L", str(place)]
    return Qemu(tuple(words), {**os.environ, "LD_LIBRARY_PATH": path})


def present(folder: Path) -> bool:
    """Whether `find` gives one that works."""
    try:
        return _version(find(folder)) >= _NEEDED
    except NoMachine:
        return False


def _version(qemu: Qemu) -> int:
    said = run(*qemu.words, "--version", env=qemu.environment or None)
    found = re.search(r"version (\d+)\.", said)
    return int(found[1]) if found else 0


def unpack(folder: Path) -> None:
    """Fetch and unpack QEMU and the libraries that the host lacks into `folder`."""
    mirror, codename = archive()
    apt = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    suites = [codename, f"{codename}-backports"] if codename == "bookworm" else [codename]
    (apt / "sources.list").write_text(
        "".join(f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n" for suite in suites)
    )
    settings = {
        "Dir::State::lists": apt / "lists", "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null", "Acquire::Languages": "none",
        "APT::Sandbox::User": "root", "Debug::NoLocking": "1",
    }  # fmt: skip
    command = ["apt-get", "-q", "-y"]
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    run(*command, "update")
    run(
        *command,
        "install",
        "--download-only",
        "--no-install-recommends",
        "--target-release",
        suites[-1],
        "qemu-system-x86",
        "qemu-utils",
    )
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, folder / "qemu")
    shutil.rmtree(apt)
    if not present(folder):
        raise NoMachine(f"the unpacked QEMU does not start: {find(folder).words}")
