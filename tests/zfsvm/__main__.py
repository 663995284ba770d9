"""A machine to develop with: `python -m tests.zfsvm build|up|ssh|down`.

`up` starts one that stays until `down` (another name as second word: another machine);
`ssh [COMMAND…]` is a shell in it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from tests.zfsvm import builder
from tests.zfsvm.machine import Machine

_STATE = builder.cache() / "lasting.json"


def main(words: list[str]) -> int:
    command = words[0] if words else "help"
    if command == "build":
        print(builder.build())
    elif command == "up":
        _up()
    elif command == "ssh":
        state = json.loads(_STATE.read_text())
        os.execvp("ssh", [*state["ssh"], *words[1:]])  # (the command as ssh takes it)
    elif command == "down":
        _down()
    else:
        print(__doc__)
        return 2
    return 0


def _up() -> None:
    if _STATE.exists():
        print(shlex.join(json.loads(_STATE.read_text())["ssh"]))
        return
    machine = Machine(name="lasting", lasting=True).start()
    machine.make_pools()
    state = {
        "pid": machine.pid, "folder": str(machine.folder), "ssh": machine.ssh_words(),
        "port": machine.port, "work_port": machine.work_port,
    }  # fmt: skip
    _STATE.write_text(json.dumps(state))
    print(f"started in {machine.started_s:.0f} s; it stays until `python -m tests.zfsvm down`")
    print(shlex.join(machine.ssh_words()))


def _down() -> None:
    state = json.loads(_STATE.read_text())
    command = Path(f"/proc/{state['pid']}/cmdline")
    if command.exists() and state["folder"].encode() in command.read_bytes():
        os.kill(state["pid"], signal.SIGKILL)
    shutil.rmtree(state["folder"], ignore_errors=True)
    _STATE.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
