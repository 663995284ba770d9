"""Finds the labs (tests/contract/lab_*.py) for every suite that runs on all kinds of volume."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from pathlib import Path

from mirrord.core.endpoint import KINDS
from tests.contract.lab import Lab

LABS = sorted(path.stem for path in (Path(__file__).parents[1] / "contract").glob("lab_*.py"))
#: Those whose volumes a definition can name: all that goes through the product runs on these.
PRODUCT_LABS = [name for name in LABS if name.removeprefix("lab_") in KINDS]
#: Those of mirrors with several members.
SET_LABS = [name for name in LABS if name.startswith("lab_set_")]
#: Those of members on another machine.
MACHINE_SETS = [name for name in SET_LABS if name == "lab_set_zfs"]
#: Those on another machine, which the product reaches by its own means (`lab.host`), too.
MACHINE_LABS = [name for name in ("lab_remote_zfs", "lab_remote_zvol") if name in LABS]


def open_lab(name: str, folder: Path, *, large: bool = False) -> AbstractContextManager[Lab]:
    """The lab of that module, fresh; large: with room for `Lab.change_much`."""
    module = importlib.import_module(f"tests.contract.{name}")
    opened: AbstractContextManager[Lab] = module.lab(folder, large=large)
    return opened
