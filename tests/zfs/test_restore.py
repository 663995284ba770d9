"""Single files come back out of a snapshot of OpenZFS: inside the virtual machine."""

from __future__ import annotations

import pytest

from tests.zfs.conftest import inside
from tests.zfsvm.guest import Guest

pytestmark = pytest.mark.zfs

_RESTORING = """
import json, os, sys, tempfile
from pathlib import Path
from tests.support.verbs import Service
from mirrord.core.errors import MirrordError
from mirrord.system.paths import Paths

name = sys.argv[1]
home = Path(f"/here/{name}/home")
def write(text):
    (home / "etc").mkdir(exist_ok=True)
    (home / "etc/hosts").write_text(text)
    os.chown(home / "etc/hosts", 12, 34)
    os.chmod(home / "etc/hosts", 0o640)
    os.setxattr(home / "etc/hosts", "user.note", b"kept")

folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
service = Service(Paths(folder / "etc", folder / "state", folder / "run"))
write("first")
service.create("home", f"zfs:here/{name}/home", f"zfs:there/{name}/home")
service.initialize("home")
write("second")
service.update("home")
[older, newer] = [one.name for one in service.snapshots("home").snapshots]
(home / "etc/hosts").unlink()
said = {}
def restore(key, snapshot=None, into=None, overwrite=False):
    try:
        service.restore_files("home", ["etc/hosts"], snapshot=snapshot, into=into,
                              overwrite=overwrite)
        found = (into or home / "etc") / "hosts"
        facts = found.stat()
        said[key] = [found.read_text(), facts.st_uid, facts.st_gid, oct(facts.st_mode),
                     os.getxattr(found, "user.note").decode()]
    except MirrordError as error:
        said[key] = error.what
restore("newest")
restore("there already")
restore("older", snapshot=older, overwrite=True)
said["kept"] = (home / "etc/hosts.before-restore").read_text()
elsewhere = folder / "out"
elsewhere.mkdir()
restore("elsewhere", into=elsewhere)
service.close()
print(json.dumps(said))
"""


def test_a_lost_file_comes_back_with_all_that_belongs_to_it(zfs_guest: Guest) -> None:
    with zfs_guest.datasets() as name:
        zfs_guest.run("zfs", "create", f"here/{name}/home")
        said = inside(zfs_guest, _RESTORING, name)
    facts = [12, 34, "0o100640", "kept"]
    assert said == {
        "newest": ["second", *facts],
        "there already": "a file of that name already exists",
        "older": ["first", *facts],
        "kept": "second",
        "elsewhere": ["second", *facts],
    }
