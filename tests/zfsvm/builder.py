"""Builds what the machine starts from, once, into the cache.

`${XDG_CACHE_HOME:-~/.cache}/mirrord/zfsvm/<key>` holds root.img, vmlinuz, initrd, key and, where
the host has none that will do, QEMU. The key is of all that determines them: another script or
another Python dependency makes another image. A build works in a folder beside and is switched in
when it is whole; two at once wait for each other.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.zfsvm import qemu
from tests.zfsvm.qemu import NoMachine

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
#: Of the guest's Python, for pip on the host: the host's own way to its packages is used so.
_GUEST_PYTHON = "3.13"
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 28, 34, 39)]
_PLATFORMS.append("manylinux2014_x86_64")
_FILES = ("root.img", "vmlinuz", "initrd", "key", "host_key.pub")
#: Not of mirrord: compared with it in the benchmark.
_MORE = ("bzfs",)
_TOOLS = ("debootstrap", "mke2fs", "ssh-keygen", "apt-get", "dpkg-deb")


def cache() -> Path:
    """Where all images are."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "mirrord" / "zfsvm"


def requirements() -> list[str]:
    """What the guest's Python needs."""
    setup = configparser.ConfigParser()
    setup.read(_ROOT / "setup.cfg")
    lines = (line.strip() for line in setup["options"]["install_requires"].splitlines())
    return [line for line in lines if line and not line.startswith("#")] + list(_MORE)


def folder() -> Path:
    """The folder of the image that belongs to this tree, there or not."""
    whole = hashlib.sha256("\n".join(requirements()).encode())
    scripts = [_HERE / "image.sh", *sorted(p for p in (_HERE / "guest").rglob("*") if p.is_file())]
    for script in scripts:
        content = script.read_bytes()
        whole.update(f"{script.relative_to(_HERE)} {len(content)}\n".encode() + content)
    return cache() / whole.hexdigest()[:16]


def built() -> bool:
    """Whether the image is there."""
    made = folder()
    return all((made / name).exists() for name in _FILES) and qemu.present(made)


def build(*, quiet: bool = False) -> Path:
    """The image's folder, built when it is missing; `NoMachine` says why it cannot be."""
    made = folder()
    if built():
        return made
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built():
            _build(made, quiet=quiet)
    return made


def _build(made: Path, *, quiet: bool) -> None:
    if os.geteuid() != 0:
        raise NoMachine("building the image needs root (debootstrap)")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise NoMachine(f"missing here: {', '.join(missing)} (./setup.sh installs them)")
    started = time.monotonic()
    beside = Path(tempfile.mkdtemp(prefix="building-", dir=cache()))
    try:
        _wheels(beside / "wheels")
        mirror, _ = qemu.archive()
        command = ["nice", "-n", "19", str(_HERE / "image.sh"), str(beside), mirror]
        done = subprocess.run(
            [*command, str(beside / "wheels")],
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE if quiet else sys.stderr,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise NoMachine(f"the image was not built: {_last_words(beside, done.stdout)}")
        shutil.rmtree(beside / "wheels")
        if not qemu.present(beside):
            qemu.unpack(beside)
        (beside / "cold").write_text(f"{time.monotonic() - started:.0f}\n")
        shutil.rmtree(made, ignore_errors=True)
        beside.rename(made)
    finally:
        # (The script has unmounted what it mounted there, also when it failed.)
        if not os.path.ismount(beside / "root" / "proc"):
            shutil.rmtree(beside, ignore_errors=True)


def _last_words(beside: Path, said: str | None) -> str:
    logs = [beside / "debootstrap.log", beside / "apt.log"]
    last = [log.read_text(errors="replace")[-700:] for log in logs if log.exists()]
    return "\n".join([(said or "")[-700:], *last])


def _wheels(target: Path) -> None:
    """Fetch the guest's Python packages with the host's pip and what it is configured with."""
    target.mkdir()
    listed = target / "requirements.txt"
    listed.write_text("\n".join(requirements()) + "\n")
    command = [sys.executable, "-m", "pip", "-q", "download", "--dest", str(target)]
    command += ["--python-version", _GUEST_PYTHON, "--implementation", "cp"]
    command += ["--only-binary", ":all:", "--requirement", str(listed)]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    qemu.run(*command)
