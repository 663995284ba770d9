"""A virtual machine with real OpenZFS: started from the image, reached over SSH on loopback.

What it writes goes to temporary files that QEMU has already unlinked: the image stays as it was
built, and nothing is left however the machine ends. It ends with the process that started it,
also when that is killed.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.ports import free_port
from tests.zfsvm import builder, qemu
from tests.zfsvm.qemu import NoMachine

#: Sparse disks for pools: vdb is for `here`, vdc for `there`, vdd is spare.
DISKS = ("vdb", "vdc", "vdd")
_DISK_BYTES = 16 << 30
#: On an idle host it takes 20.
_START_S = 600
#: Emulated processors. Two wait for each other most of the time: with one, `zfs create`, `mount`
#: and their like take half as long, and all together a fifth less of the host's time. But where
#: there can never be a second one QEMU leaves out the guest's memory barriers; once in some hours
#: a disk's interrupt is lost by that, and the pool hangs. So there may be two, and there is one.
_PROCESSORS = "cpus=1,maxcpus=2"
#: Emulated, the fast instructions to copy memory are slow: they go byte by byte. A kernel that does
#: not see them copies words, and 20 MiB come to the disk in a quarter of the time. (A fifth level
#: of page tables is one more look at each.)
_PROCESSOR = "max,erms=off,fsrm=off,fzrm=off,fsrs=off,la57=off"
#: What costs at every call, page or switch of a process, and guards against what nobody does here:
#: its security modules alone (AppArmor, TOMOYO, IMA …) look at every file that is opened.
_KERNEL = (
    "mitigations=off nokaslr rcupdate.rcu_expedited=1 random.trust_cpu=on"
    " lsm=capability audit=0 init_on_alloc=0 psi=0 cgroup_disable=memory"
    # Whoever asks for holes of a file that is still being written is told of none: a test that
    # looks at what a user wrote is not to have it synced by that.
    " zfs.zfs_dmu_offset_next_sync=0"
)
#: What is not waited for: the image is new at each start, so all that is done once after an update
#: would be done each time.
_STARTUP = (
    "systemd.show_status=false systemd.condition_needs_update=false"
    " systemd.mask=systemd-udev-settle.service systemd.mask=systemd-binfmt.service"
    " systemd.mask=getty-static.service"
)


class Machine:
    """One machine; `port` is its sshd's and `work_port` its worker's, both on 127.0.0.1."""

    def __init__(
        self, *, name: str = "zfsvm", memory_mib: int = 2560, lasting: bool = False
    ) -> None:
        """lasting: it outlives this process (a machine to develop with)."""
        self.image = builder.build()
        self.name, self._memory_mib, self._lasting = name, memory_mib, lasting
        self.folder = Path(tempfile.mkdtemp(prefix=f"mirrord-{name}-"))
        self.port, self.work_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0

    # Its life

    def start(self) -> Machine:
        """Start it and wait until its sshd answers; `NoMachine` when it does not in time."""
        begun = time.monotonic()
        blank = self.folder / "blank"
        with blank.open("wb") as file:
            file.truncate(_DISK_BYTES)
        found = qemu.find(self.image)
        keeper = [] if self._lasting else ["setpriv", "--pdeathsig", "KILL"]
        with (self.folder / "qemu.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*keeper, *found.words, *self._arguments(blank)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**found.environment, "TMPDIR": str(self.folder)},
            )
        try:
            self._await_ssh(begun + _START_S)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic() - begun
        return self

    def _arguments(self, blank: Path) -> list[str]:
        disks = [(self.image / "root.img", "root")] + [(blank, disk) for disk in DISKS]
        words = [
            "-name", self.name, "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512",
            "-cpu", _PROCESSOR, "-smp", _PROCESSORS, "-m", str(self._memory_mib),
            "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none",
            "-no-reboot", "-serial", f"file:{self.folder}/console",
            "-kernel", f"{self.image}/vmlinuz", "-initrd", f"{self.image}/initrd",
            "-append", f"root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 {_KERNEL} {_STARTUP}",
            "-netdev", "user,id=net,restrict=on,ipv6=off"
            f",hostfwd=tcp:127.0.0.1:{self.port}-:22"
            f",hostfwd=tcp:127.0.0.1:{self.work_port}-:7000",
            "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        ]  # fmt: skip
        for file, name in disks:
            words += [
                "-drive",
                f"file={file},format=raw,if=none,id={name},snapshot=on,cache=unsafe"
                ",discard=unmap,detect-zeroes=unmap",
                "-device",
                f"virtio-blk-pci,drive={name},serial={name},event_idx=off",
            ]
        return words

    def _await_ssh(self, until: float) -> None:
        assert self.process is not None
        while True:
            if self.process.poll() is not None:
                raise NoMachine(f"QEMU ended at once: {self.last_words()}")
            if self.ssh("true", check=False).returncode == 0:
                return
            if time.monotonic() > until:
                raise NoMachine(f"no answer by SSH in {_START_S} s: {self.last_words()}")
            time.sleep(0.5)

    def last_words(self) -> str:
        """The end of what QEMU and the console said."""
        logs = [self.folder / "qemu.log", self.folder / "console"]
        said = [log.read_text(errors="replace")[-1500:] for log in logs if log.exists()]
        return "\n".join(said)

    def stop(self) -> None:
        """End it; nothing is left."""
        if self.process is not None:
            try:
                self.process.send_signal(signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    # What is done in it

    def ssh_words(self, user: str = "root") -> list[str]:
        """The words of an `ssh` into it, without the command."""
        return [
            "ssh",
            "-F",
            "none",
            "-p",
            str(self.port),
            "-i",
            str(self.key),
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "LogLevel=ERROR",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "ConnectTimeout=20",
            "-o",
            "ServerAliveInterval=30",
            # One connection for all: to agree on keys takes seconds of the emulated machine.
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=yes",
            "-o",
            f"ControlPath={self.folder}/%r",
            f"{user}@127.0.0.1",
        ]

    def ssh(
        self,
        *words: str,
        data: bytes = b"",
        check: bool = True,
        user: str = "root",
        timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in it; data: its standard input."""
        done = subprocess.run(
            [*self.ssh_words(user), shlex.join(words)],
            input=data,
            capture_output=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise AssertionError(f"{shlex.join(words)}: exit status {done.returncode}: {said}")
        return done

    def make_pools(self) -> None:
        """Pools `here` and `there`, a disk each, mounted at /here and /there."""
        for pool, disk in zip(("here", "there"), DISKS, strict=False):
            self.ssh("zpool", "create", "-f", "-o", "cachefile=none", pool, f"/dev/{disk}")

    def __enter__(self) -> Machine:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """QEMU's."""
        assert self.process is not None
        return self.process.pid

    @property
    def key(self) -> Path:
        """The private key that it lets in, for root and for `tester`."""
        return self.image / "key"

    @property
    def host_key(self) -> str:
        """Its sshd's public key, as a line of ssh-keygen."""
        return (self.image / "host_key.pub").read_text()
