"""The operator guide is executed from top to bottom, with its very paths, on real btrfs.

In mount and network namespaces of its own, below a root that is an overlay of this machine's: what
the guide writes into /etc, /usr/local and /var is gone afterwards.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace

import pytest

from tests.docs.test_guide import masked as masked_in_general
from tests.support.btrfs import require_btrfs
from tests.support.unit import ROOT, settings

GUIDE = ROOT / "docs/operator-guide.md"
_END = "\x01"
_START = f"""
( umask {settings("UMask")[0]}; exec {settings("ExecStart")[0]} ) 2> /var/log/mirrord.log &
service=$!
while ! [ -S /run/mirrord/control.sock ] || ! grep -q ready /var/log/mirrord.log
do kill -0 $service || break; sleep 0.05; done
"""
#: Blocks marked `norun`: the first command -> why it is not run, and what is run in its place.
NOT_RUN = {
    "git clone URL /opt/mirrord": (
        "there is no address to clone from, and setup.sh installs packages: this very tree is used",
        f"ln -s {shlex.quote(str(ROOT))} /opt/mirrord",
    ),
    "systemctl daemon-reload": (
        "no systemd runs in the test: the words of ExecStart are run instead",
        _START,
    ),
}
_MASKS = (
    (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) CES?T", r"\1"),
    (r"'home'=\d+s", "'home'=LAG"),
    (r"\d{4}-(\d\d-\d\d( \d\d:\d\d)?|W\d\d)", "DAY"),
    (r"[\d.]+ [KM]?i?B in", "SIZE in"),
)


@dataclass(frozen=True)
class Step:
    """A block without a prompt, or a command of a session with what it prints there."""

    command: str
    output: tuple[str, ...] | None
    line: int


def steps() -> list[Step]:
    found: list[Step] = []
    text = GUIDE.read_text(encoding="utf-8")
    fence = re.compile(r"^( *)```(sh|sh norun|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    for block in fence.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        content = textwrap.dedent(block[3])
        if block[2] == "sh norun":
            _, content = NOT_RUN[content.splitlines()[0]]
            found.append(Step(content, None, line))
        elif block[2] == "sh":
            found.append(Step(f"( set -e\n{content})", None, line))
        else:
            found += _session(content, line)
    return found


def _session(content: str, line: int) -> list[Step]:
    found: list[Step] = []
    for number, each in enumerate(content.splitlines()):
        if each.startswith("# "):
            found.append(Step(each[2:], (), line + number))
        else:
            found[-1] = replace(found[-1], output=(*(found[-1].output or ()), each))
    return found


def masked(line: str) -> str:
    for pattern, word in _MASKS[:2]:
        line = re.sub(pattern, word, line)
    line = masked_in_general(line)
    for pattern, word in _MASKS[2:]:
        line = re.sub(pattern, word, line)
    return line


_PREPARE = r"""
set -e
cd "$1"
mkdir over root
mount -t tmpfs tmpfs over
mkdir over/upper over/work
mount -t overlay overlay -o lowerdir=/,upperdir="$PWD/over/upper",workdir="$PWD/over/work" root
for folder in proc sys dev; do mount --rbind "/$folder" "root/$folder"; done
for folder in run tmp; do mount -t tmpfs tmpfs "root/$folder"; done
for folder in "$2" "$3"; do
    case "$(stat -c %d "$folder"):$folder" in
        *:/tmp/*|*:/run/*) ;;
        "$(stat -c %d /)":*) continue ;;
    esac
    mkdir -p "root$folder"; mount --rbind "$folder" "root$folder"
done
mkdir -p root/etc/systemd/system root/usr/local/sbin
for disk in data backup newdisk; do
    truncate -s 512M "$disk.image"
    tries=0
    until mkfs.btrfs -q -f "$disk.image"; do  # fails while a loop device of another is given back
        tries=$((tries + 1)); [ $tries -lt 50 ]
    done > /dev/null 2>&1
    mkdir -p "root/$disk"
    mount -o loop "$disk.image" "root/$disk"
done
mkdir -p root/data/home/etc
echo '127.0.0.1 localhost' > root/data/home/etc/hosts
head -c 1500000 /dev/urandom > root/data/home/picture
cp script root/tmp/script
exec chroot root env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/root LANG=C.UTF-8 bash /tmp/script
"""
_LOOPBACK = """
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    fcntl.ioctl(asking, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, list[str]]]:
    """Exit status and output of every step, run by one shell."""
    require_btrfs()
    folder = tmp_path_factory.mktemp("operator")
    lines = "".join(f"{step.command}\nprintf '{_END}%d{_END}' $?\n" for step in steps())
    (folder / "script").write_text(
        f"exec 2>&1 < /dev/null\n{lines}kill $service\nwait $service\nprintf '{_END}%d{_END}' $?\n"
    )
    loopback = shlex.join([sys.executable, "-c", _LOOPBACK])
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-c", f"{loopback} && {_PREPARE}", "guide",
         folder, ROOT, sys.base_prefix],
        text=True, capture_output=True, timeout=240,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    parts = done.stdout.split(_END)
    return [
        (int(status), output.splitlines())
        for output, status in zip(parts[0::2], parts[1::2], strict=False)
    ]


def test_what_is_not_run_is_in_the_guide() -> None:
    marked = re.findall(r"^ *```sh norun\n(.*)$", GUIDE.read_text(), re.MULTILINE)
    assert sorted(marked) == sorted(NOT_RUN)


def test_the_guide_has_the_whole_story() -> None:
    told = " ".join(step.command for step in steps())
    for verb in (
        "create",
        "initialize",
        "schedule",
        "status",
        "monitor",
        "throttle",
        "prune",
        "alarms",
        "break",
        "resync",
        "reverse",
        "restore",
        "delete",
    ):
        assert f"mirrord {verb}" in told


@pytest.mark.parametrize("number", range(len(steps())), ids=lambda n: f"line{steps()[n].line}")
def test_a_step_of_the_guide_does_what_the_guide_shows(
    results: list[tuple[int, list[str]]], number: int
) -> None:
    step, (status, output) = steps()[number], results[number]
    if step.output is None:
        assert status == 0, "\n".join(output)
        return
    fails = any(line.startswith(("error:", "MIRRORD CRITICAL")) for line in step.output)
    assert (status != 0) is fails, "\n".join(output)
    assert [masked(line) for line in output] == [masked(line) for line in step.output]


def test_the_service_ended_in_order(results: list[tuple[int, list[str]]]) -> None:
    assert results[len(steps())][0] == 0
