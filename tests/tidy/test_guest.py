"""What runs inside the OpenZFS machine needs nothing that is not installed there."""

from __future__ import annotations

import subprocess
import sys

from tests.support.unit import ROOT

#: Modules of the host alone, then each import of the program and of its functions.
_SCRIPT = """
import ast, importlib, pathlib, sys
for absent in ("pytest", "hypothesis"):
    sys.modules[absent] = None
for name in ("tests/zfsvm/inside.py", "tests/zfsvm/user.py"):
    for node in ast.walk(ast.parse(pathlib.Path(name).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
            print(node.module)
"""


def test_the_machine_needs_no_package_of_the_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tests.live.lab" in done.stdout.split()
