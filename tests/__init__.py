"""Tests; what each process of them needs before anything else."""

from __future__ import annotations

import os
import sys

#: Set in many containers. Each Python that a test starts would compile all of mirrord again, which
#: takes as long as the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
