"""The product's state is in objects that are passed: none in modules, none in threads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.test_tidy import tree_of

ROOT = Path(__file__).parents[2]
PRODUCT = ("mirrord", "drivers", "schedules", "traces", "analysis")
#: What may stay, and no more: take out what is gone.
ALLOWED = {
    # Where tests put a simulated world in the place of the real one; and what process this is.
    "mirrord/system/clock.py": {"_source"},
    "mirrord/system/steps.py": {"_observer"},
    "mirrord/system/locks.py": {"_shared"},
    # The process's log.
    "mirrord/daemon/journal.py": {"log"},
    # The programs that this process has started.
    "drivers/zfs/commands/command.py": {"_executions", "_guard"},
    "drivers/zfs/commands/helper.py": {"_helper", "_wished", "_guard"},
    "drivers/zfs/receive/held_receive.py": {"_kept", "_guard"},
    # What was read of listings, by the dataset.
    "drivers/zfs/snapshots/listing_cache.py": {"_read"},
    # The volumes that this process writes to: whoever changes one must find it.
    "drivers/block/volume.py": {"_open_volumes"},
}
_CHANGING = re.compile(
    "add|append(left)?|clear|discard|extend(left)?|insert|pop(item|left)?|remove|reverse"
    "|setdefault|sort|update"
)
#: What is made to be changed, whoever does it.
_CHANGEABLE = re.compile(
    "Barrier|(Bounded)?Semaphore|Condition|ContextVar|Event|R?Lock|(Lifo|Priority|Simple)?Queue"
    "|ThreadPoolExecutor"
)


def modules() -> list[Path]:
    found = (path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))
    return sorted({path for path in found if not _linked(path)})


def _linked(path: Path) -> bool:
    """Whether it is found a second time, by one of the links in the package."""
    return any(parent.is_symlink() for parent in path.parents if ROOT in parent.parents)


def _name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def state_of(tree: ast.Module) -> set[str]:
    """The names of a module by which it holds what changes; "threading.local" for that."""
    assigned = {name for node in tree.body for name in _targets(node)}
    return {
        *_made_to_change(tree),
        *(name for node in ast.walk(tree) for name in _rebound(node)),
        *(name for node in ast.walk(tree) for name in _changed(node, assigned)),
    }


def _targets(node: ast.stmt) -> Iterator[str]:
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    for target in targets:
        yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def _made_to_change(tree: ast.Module) -> Iterator[str]:
    """Assigned in the module itself: a lock, an event, a queue."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and _CHANGEABLE.fullmatch(_last(value.func)):
            yield from _targets(node)


def _last(name: ast.expr) -> str:
    if isinstance(name, ast.Attribute):
        return name.attr
    return name.id if isinstance(name, ast.Name) else ""


def _rebound(node: ast.AST) -> Iterator[str]:
    """By `global`; and whatever is made for each thread."""
    if isinstance(node, ast.Global):
        yield from node.names
    if (
        isinstance(node, ast.Attribute)
        and node.attr == "local"
        and ast.unparse(node) == "threading.local"
    ):
        yield "threading.local"
    if isinstance(node, ast.ImportFrom) and node.module in ("threading", "contextvars"):
        yield from (f"threading.{one.name}" for one in node.names if one.name == "local")
        yield from (one.name for one in node.names if one.name == "ContextVar")


def _changed(node: ast.AST, assigned: set[str]) -> Iterator[str]:
    """In place, within a function: `name.append(...)`, `name[key] = ...`, `del name[key]`."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)} | {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    for one in ast.walk(node):
        held: ast.expr | None = None
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            held = one.func.value if _CHANGING.fullmatch(one.func.attr) else None
        elif isinstance(one, ast.Subscript | ast.Attribute) and not isinstance(one.ctx, ast.Load):
            held = one.value
        if isinstance(held, ast.Name) and held.id in assigned - own:
            yield held.id


def test_no_module_holds_state() -> None:
    found = {_name_of(path): state_of(tree_of(path)) for path in modules()}
    assert {name: state for name, state in found.items() if state} == ALLOWED


def test_what_is_allowed_is_there() -> None:
    assert {_name_of(path) for path in modules()} >= ALLOWED.keys()
    assert len(modules()) > 200


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("_seen = {}\ndef f(): _seen['x'] = 1", "_seen"),
        ("_seen: dict[str, int] = {}\ndef f(): del _seen['x']", "_seen"),
        ("_seen = []\nclass C:\n    def f(self): _seen.append(1)", "_seen"),
        ("_seen = 0\ndef f():\n    global _seen\n    _seen = 1", "_seen"),
        ("import threading\n_guard = threading.Lock()", "_guard"),
        ("import threading\nclass C(threading.local): pass", "threading.local"),
        ("import threading\ndef f(): return threading.local()", "threading.local"),
        ("from threading import local", "threading.local"),
    ],
)
def test_state_is_found(source: str, name: str) -> None:
    assert state_of(ast.parse(source)) == {name}


@pytest.mark.parametrize(
    "source",
    [
        "_NAMES = {'a': 1}\ndef f(): return _NAMES['a']",
        "def f():\n    found = []\n    found.append(1)",
        "_found = []\ndef f(_found): _found.append(1)",
        "_NAMES = []\nfor one in 'abc': _NAMES.append(one)",
    ],
)
def test_what_does_not_change_is_none(source: str) -> None:
    assert state_of(ast.parse(source)) == set()
