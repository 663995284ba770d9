"""The errors of `zfs` and `zpool` as mirrord errors: what, where, why, and what to do.

error_messages.py has the table. A message that matches no rule there is passed on in one line.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Callable, Sequence

from mirrord.core.errors import MIRROR, IoFailed, MirrordError, PermissionMissing
from mirrord.core.units import format_few
from mirrord.drivers.zfs.commands.error_messages import RULES
from mirrord.drivers.zfs.commands.permissions import granted, needed_by

_SHOWN_MAX = 400
#: Runs another `zfs` command for an error message: returns its output, or "".
Ask = Callable[[Sequence[str]], str]


_DENIED = re.compile(
    r"permission denied|[Ii]nsufficient privileges|Operation not permitted|delegated permission is "
    r"needed|must be superuser|requires root"
)
_MOUNTING = re.compile(r"cannot (?:un)?mount ")
#: Subcommands that create a dataset: the permissions are set on its parent.
_MAKING = frozenset({"receive", "recv", "create", "clone", "rename"})
_QUOTED = re.compile(r"'([^'\s]+)'")
_DATASET = re.compile(
    r"\b(?:of|destination|snapshot|receive|snapshots?) ([\w.:%-]+(?:/[\w.:%-]+)+(?:@[\w.:%-]+)?)"
)


def translate(
    where: str,
    arguments: Sequence[str],
    stderr: str,
    returncode: int = 1,
    *,
    ask: Ask | None = None,
    user: str = "",
) -> MirrordError:
    """The error for what a command wrote to its standard error.

    arguments: of the command, its name first. ask: runs a command for more details (the holds of a
    snapshot). user: that ran it; "" for the user of this process.
    """
    said = _one_line(stderr)
    user = user or _user()
    name = _name(said, arguments)
    if _DENIED.search(stderr):
        return _denied(where, arguments, stderr, name, user, ask)
    for rule in RULES:
        found = re.search(rule.pattern, stderr)
        if found is None:
            continue
        group = found.groupdict().get("found") or ""
        name = _dataset_of(group) or name
        values = {
            "name": name,
            "dataset": re.split(r"[@#]", name)[0],
            "pool": re.split(r"[/@#]", name)[0],
            "verb": " ".join(arguments[:2]),
            "said": said,
            "found": group or name,
            "user": user,
            "mirror": MIRROR,
            "below": _below(stderr) or "'zfs list -t all -r' shows them",
            "holders": _holders(name, ask) if "{holders}" in rule.what else "",
        }
        quoted = {key: shlex.quote(values[key]) for key in ("name", "dataset", "pool", "found")}
        return rule.kind(
            rule.what.format_map(values),
            where=where,
            why=rule.why.format_map(values),
            hint=rule.hint.format_map({**values, **quoted}),
        )
    return IoFailed(
        f"'{' '.join(arguments[:2])}' failed",
        where=where,
        why=said or f"it ended with status {returncode} and without a message",
        hint="Run it by hand for more details: " + shlex.join(arguments)[:_SHOWN_MAX],
    )


def _denied(
    where: str, arguments: Sequence[str], stderr: str, name: str, user: str, ask: Ask | None
) -> MirrordError:
    said, needed = _one_line(stderr), needed_by(arguments)
    dataset = re.split(r"[@#]", name)[0]
    if not needed or _MOUNTING.search(stderr):
        return PermissionMissing(
            f"the user {user} may not mount or unmount '{dataset}'",
            where=where,
            why=f"{said} (on Linux only root can mount, even with delegated permissions)",
            hint="Run it as root; or as root unmount the dataset once and run 'zfs set "
            f"canmount=noauto {shlex.quote(dataset)}': then the mirror is updated without being "
            "mounted.",
        )
    if arguments[1] in _MAKING:
        dataset = _destination(arguments, dataset)
    given = granted(ask(["zfs", "allow", dataset]), dataset, user) if ask else frozenset()
    missing = [each for each in needed if each not in given] or list(needed)
    return PermissionMissing(
        f"the user {user} lacks {' and '.join(repr(each) for each in missing)} on '{dataset}'",
        where=where,
        why=said,
        hint=f"As root: zfs allow -u {user} {','.join(missing)} {shlex.quote(dataset)}. All "
        "permissions that a mirror needs: docs/operator-guide.md ('ZFS without root').",
    )


def _destination(arguments: Sequence[str], otherwise: str) -> str:
    """The dataset on which a permission can be set: the parent of a new one."""
    last = re.split(r"[@#]", arguments[-1])[0]
    above = last.rpartition("/")[0]
    return above or last or otherwise


def _one_line(stderr: str) -> str:
    """The message in one line, without the usage text of `zfs` and its advice to force."""
    lines = []
    for line in stderr.splitlines():
        text = line.strip()
        if text.startswith(("usage:", "use '-", "must specify -F", "A resuming stream can")):
            break
        if text:
            lines.append(text.removeprefix("warning: "))
    plain = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(lines)
    )
    return plain if len(plain) <= _SHOWN_MAX else plain[:_SHOWN_MAX] + "…"


def _below(stderr: str) -> str:
    """The datasets and snapshots that a message lists after its first lines."""
    lines = [line.strip() for line in stderr.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith("use '-")]
    listed = [line for line in lines[starts[0] + 1 :] if line and " " not in line] if starts else []
    return format_few(listed)


def _name(said: str, arguments: Sequence[str]) -> str:
    """The subject of a message: what it quotes or names, or else the command's last argument."""
    for found in (*_QUOTED.finditer(said), *_DATASET.finditer(said)):
        if name := _dataset_of(found[1]):
            return name
    return arguments[-1] if arguments else ""


def _dataset_of(text: str) -> str:
    """The name of a dataset, or "" ("receive -s" and paths are none)."""
    text = text.rstrip(".:,")
    return text if text and not text.startswith(("-", "/")) and "=" not in text else ""


def _holders(name: str, ask: Ask | None) -> str:
    if ask is None or "@" not in name:
        return ""
    tags = [
        fields[1]
        for line in ask(["zfs", "holds", "-H", name]).splitlines()
        if len(fields := line.split("\t")) >= 2
    ]
    return f" by {', '.join(repr(tag) for tag in dict.fromkeys(tags))}" if tags else ""


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
