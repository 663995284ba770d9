"""A process that runs the most frequent `zfs` commands without starting a program for each.

It is a separate script that needs only Python and OpenZFS's library libzfs_core, whose interface is
guaranteed to be stable. It takes the same arguments as `zfs` and returns what `zfs` would print;
where it cannot, or ZFS refuses, it reports that, and `zfs` is run to do the work or to print the
error. (Of several snapshots some may be held or released by then.) It is a separate process because
of pools that hang in the kernel: then this process hangs, and that of mirrord can end.

Each line of its input is `[number, words, input]` in JSON, each line of its output `[number,
status, output, errors]`, or `[number]` for a command that `zfs` has to run. It ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: The exit status of `zfs` and what it prints: status, output, errors. None: run `zfs` instead.
Answer = tuple[int, str, str] | None

_NULL = ctypes.c_void_p
_UNIQUE_NAMES = 1
#: The limits of a channel program: the defaults of `zfs program`.
_INSTRUCTIONS, _MEMORY_BYTES = 10_000_000, 10 << 20
_WHOLE = (1 << 64) - 1
_INT64, _STRING, _NVLIST, _BOOLEAN = 7, 9, 19, 21
#: Properties that are read exactly as `zfs` prints them (tests/zfs/test_worker.py compares).
_READ = frozenset((
    "type", "guid", "objsetid", "mountpoint", "mounted", "readonly", "canmount", "overlay",
    "used", "available", "referenced", "origin", "inconsistent", "volblocksize",
    "receive_resume_token", "encryption", "keystatus", "createtxg", "creation", "defer_destroy",
    "userrefs", "clones", "written",
))  # fmt: skip
_FIELDS = frozenset(("name", "property", "value", "source"))

#: Returns all as one text: getting each value of a list from the library would be the slowest part.
_GET = """
local asked, found = ..., {}
for _, name in ipairs(asked["names"]) do
    if zfs.exists(name) then
        for _, what in ipairs(asked["properties"]) do
            local value, source = zfs.get_prop(name, what)
            if type(value) == "table" then value = table.concat(value, ",") end
            if value ~= nil then
                local words = {name, what, tostring(value), source or "-"}
                found[#found + 1] = table.concat(words, "\\31")
            end
        end
    end
end
return table.concat(found, "\\30")
"""
_SET = """
local asked, failed = ..., 0
for number, name in ipairs(asked["names"]) do
    if zfs.sync.set_prop(asked["of"][1], name, asked["values"][number]) ~= 0 then
        failed = failed + 1
    end
end
return {failed = failed}
"""
_INHERIT = """
local asked = ...
return {failed = zfs.sync.inherit(asked["names"][1], asked["properties"][1])}
"""


class Library:
    """libzfs_core, with nvlists as Python dictionaries. Raises `OSError` where the library or ZFS
    is missing.
    """

    def __init__(self) -> None:
        self._pairs = ctypes.CDLL("libnvpair.so.3")
        self._core = ctypes.CDLL("libzfs_core.so.3")
        self._pairs.nvlist_next_nvpair.restype = _NULL
        self._pairs.nvpair_name.restype = ctypes.c_char_p
        if self._core.libzfs_core_init() != 0:
            raise OSError("ZFS is not available")

    def _made(self, values: Mapping[str, Any]) -> ctypes.c_void_p:
        """An nvlist, to be freed. Values: True (present), text, lists of text, mappings."""
        made = _NULL()
        self._check(self._pairs.nvlist_alloc(ctypes.byref(made), _UNIQUE_NAMES, 0))
        for key, value in values.items():
            name = key.encode()
            if value is True:
                self._check(self._pairs.nvlist_add_boolean(made, name))
            elif isinstance(value, str):
                self._check(self._pairs.nvlist_add_string(made, name, value.encode()))
            elif isinstance(value, Mapping):
                inner = self._made(value)
                self._check(self._pairs.nvlist_add_nvlist(made, name, inner))
                self._pairs.nvlist_free(inner)
            else:
                texts = (ctypes.c_char_p * len(value))(*(each.encode() for each in value))
                self._check(self._pairs.nvlist_add_string_array(made, name, texts, len(value)))
        return made

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            raise OSError(status, os.strerror(status))

    def _found(self, pairs: ctypes.c_void_p) -> dict[str, Any]:
        """An nvlist's content. Raises `ValueError` for a value of an unexpected type."""
        found: dict[str, Any] = {}
        pair = self._pairs.nvlist_next_nvpair(pairs, None)
        while pair:
            here = _NULL(pair)
            name = self._pairs.nvpair_name(here).decode(errors="replace")
            found[name] = self._value(here, self._pairs.nvpair_type(here))
            pair = self._pairs.nvlist_next_nvpair(pairs, here)
        return found

    def _value(self, pair: ctypes.c_void_p, kind: int) -> Any:
        if kind == _INT64:
            number = ctypes.c_int64()
            self._check(self._pairs.nvpair_value_int64(pair, ctypes.byref(number)))
            return number.value
        if kind == _STRING:
            text = ctypes.c_char_p()
            self._check(self._pairs.nvpair_value_string(pair, ctypes.byref(text)))
            return (text.value or b"").decode(errors="replace")
        if kind == _BOOLEAN:
            truth = ctypes.c_int()
            self._check(self._pairs.nvpair_value_boolean_value(pair, ctypes.byref(truth)))
            return bool(truth.value)
        if kind == _NVLIST:
            inner = _NULL()
            self._check(self._pairs.nvpair_value_nvlist(pair, ctypes.byref(inner)))
            return self._found(inner)
        raise ValueError(f"a value of kind {kind}")

    def program(self, text: str, pool: str, asked: Mapping[str, Any], *, waits: bool) -> Any:
        """What a channel program returns; None: it failed. waits: it may change something, and
        returns when that is on disk.
        """
        call = self._core.lzc_channel_program if waits else self._core.lzc_channel_program_nosync
        given, said = self._made(asked), _NULL()
        limits = ctypes.c_uint64(_INSTRUCTIONS), ctypes.c_uint64(_MEMORY_BYTES)
        try:
            status = call(pool.encode(), text.encode(), *limits, given, ctypes.byref(said))
            return self._found(said).get("return") if status == 0 else None
        finally:
            self._pairs.nvlist_free(given)
            self._pairs.nvlist_free(said)

    def hold(self, tag: str, snapshots: Sequence[str]) -> bool:
        """Hold them; False: not all are held."""
        given, said = self._made(dict.fromkeys(snapshots, tag)), _NULL()
        return self._succeeded(self._core.lzc_hold(given, -1, ctypes.byref(said)), given, said)

    def release(self, tag: str, snapshots: Sequence[str]) -> bool:
        """Release them; False: not all are released."""
        given, said = self._made({each: {tag: True} for each in snapshots}), _NULL()
        return self._succeeded(self._core.lzc_release(given, ctypes.byref(said)), given, said)

    def destroy(self, full: str) -> bool:
        """Destroy a snapshot or a bookmark; False: it still exists, or did not exist. (For a
        bookmark that did not exist the library reports success.)
        """
        if "@" in full and not self._core.lzc_exists(full.encode()):
            return False
        given, said = self._made({full: True}), _NULL()
        if "@" in full:
            status = self._core.lzc_destroy_snaps(given, 0, ctypes.byref(said))
        else:
            status = self._core.lzc_destroy_bookmarks(given, ctypes.byref(said))
        return self._succeeded(status, given, said)

    def _succeeded(self, status: int, given: ctypes.c_void_p, said: ctypes.c_void_p) -> bool:
        # (Missing ones among several are reported only in the list.)
        succeeded = status == 0 and not self._found(said)
        self._pairs.nvlist_free(given)
        self._pairs.nvlist_free(said)
        return succeeded


def answer(library: Library, words: Sequence[str], given: str) -> Answer:
    """Run the `zfs` command line `words`."""
    match words:
        case ["zfs", "hold", tag, *names] if _plain(tag, *names):
            return (0, "", "") if library.hold(tag, names) else None
        case ["zfs", "release", tag, *names] if _plain(tag, *names):
            return (0, "", "") if library.release(tag, names) else None
        case ["zfs", "destroy", full] if _one(full):
            return (0, "", "") if library.destroy(full) else None
        case ["zfs", "set", *settings, of] if settings and _plain(*settings, of):
            return _set(library, settings, of)
        case ["zfs", "inherit", name, of] if ":" in name and _plain(name, of):
            asked = {"names": [of], "properties": [name]}
            return _changed(library.program(_INHERIT, _pool(of), asked, waits=True))
        case ["zfs", "program", "-j", pool, "-", *arguments]:
            said = library.program(given, pool, {"argv": arguments}, waits=True)
            return None if said is None else (0, json.dumps({"return": said}), "")
        case ["zfs", "get", "-Hp", "-o", fields, properties, *names] if _plain(*names):
            return _get(library, fields.split(","), properties.split(","), names)
        case ["zfs", "list", "-Hp", "-t", "snapshot", "-o", columns, full] if _one(full):
            return _list(library, columns.split(","), full)
    return None


def _plain(*words: str) -> bool:
    return bool(words) and not any(word.startswith("-") for word in words)


def _one(full: str) -> bool:
    """Whether this is the name of one snapshot or bookmark, and not of several."""
    return full.count("@") + full.count("#") == 1 and not set(full) & set("%,") and _plain(full)


def _pool(name: str) -> str:
    return name.partition("/")[0].partition("@")[0].partition("#")[0]


def _changed(said: Any) -> Answer:
    return (0, "", "") if isinstance(said, dict) and said.get("failed") == 0 else None


def _set(library: Library, settings: Iterable[str], of: str) -> Answer:
    """Set user properties only: others have more effects than their value."""
    pairs = [setting.partition("=")[::2] for setting in settings]
    if not all(":" in name for name, _ in pairs):
        return None
    asked = {
        "of": [of],
        "names": [name for name, _ in pairs],
        "values": [value for _, value in pairs],
    }
    return _changed(library.program(_SET, _pool(of), asked, waits=True))


def _get(
    library: Library, fields: Sequence[str], properties: Sequence[str], names: Sequence[str]
) -> Answer:
    found = _read(library, properties, names)
    if found is None or not set(fields) <= _FIELDS:
        return None
    lines, missing = [], []
    for name in sorted(set(names)):
        if name not in found:
            missing.append(f"cannot open '{name}': dataset does not exist\n")
            continue
        for what in properties:
            value, source = found[name].get(what, ("-", "-"))
            row = {"name": name, "property": what, "value": value, "source": source}
            lines.append("\t".join(row[field] for field in fields) + "\n")
    return (1 if missing else 0), "".join(lines), "".join(missing)


def _list(library: Library, columns: Sequence[str], full: str) -> Answer:
    wanted = [column for column in columns if column != "name"]
    found = _read(library, wanted, [full])
    if found is None:
        return None
    if full not in found:
        return 1, "", f"cannot open '{full}': dataset does not exist\n"
    return 0, _line(columns, full, found[full]), ""


def _line(columns: Iterable[str], full: str, of: Mapping[str, tuple[str, str]]) -> str:
    values = {"name": full, **{what: value for what, (value, _) in of.items()}}
    return "\t".join(values.get(each, "-") for each in columns) + "\n"


def _read(
    library: Library, properties: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, tuple[str, str]]] | None:
    """For each dataset that exists: property -> (value, source), without missing properties."""
    known = all(what in _READ or ":" in what or what.startswith("written@") for what in properties)
    if not known or len({_pool(name) for name in names}) != 1:
        return None
    # (A name given twice would be printed twice.)
    asked = {"names": list(dict.fromkeys(names)), "properties": [*properties, "type"]}
    said = library.program(_GET, _pool(names[0]), asked, waits=False)
    if said is None:
        return None
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for line in said.split("\x1e") if said else ():
        name, what, value, source = line.split("\x1f")
        if source == "temporary":
            return None  # it was remounted: `zfs` knows the set and the effective value
        found.setdefault(name, {})[what] = value, _source(source, name)
    mounts = dict(_mounts()) if "mounted" in properties or "mountpoint" in properties else {}
    for name, of in found.items():
        _print(of, mounts.get(name))
    return found


def _print(of: dict[str, tuple[str, str]], mounted: tuple[str, set[str]] | None) -> None:
    """Convert a dataset's properties to what `zfs` prints."""
    if of["type"][0] == "filesystem":
        of["mounted"] = ("no" if mounted is None else "yes"), "-"
    for what, (value, source) in of.items():
        if what == "guid" and value.startswith("-"):
            of[what] = str(int(value) & _WHOLE), source
        elif value == "" or (what == "keystatus" and value == "none"):
            of[what] = "-", source
        elif what == "encryption" and value == "off":
            of[what] = value, "default"
        elif what == "mountpoint" and mounted is not None:
            of[what] = mounted[0], source  # (a pool may have been imported with an altroot)
        elif what == "readonly" and mounted is not None:
            now = "on" if "ro" in mounted[1] else "off"
            of[what] = now, source if now == value else "temporary"


def _source(said: str, name: str) -> str:
    if said == "$recvd":
        return "received"
    if said in ("-", "default"):
        return said
    return "local" if said == name else f"inherited from {said}"


def _mounts() -> Iterator[tuple[str, tuple[str, set[str]]]]:
    """The mounted datasets: dataset -> (mountpoint, options)."""
    # (Loading pathlib takes as long as everything else here.)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        for line in file:
            device, where, kind, options = line.split(" ")[:4]
            if kind == "zfs":
                yield _unescaped(device), (_unescaped(where), set(options.split(",")))


def _unescaped(escaped: str) -> str:
    """Decode octal escapes of that table (`\\040` for a space)."""
    first, *others = escaped.split("\\")
    return first + "".join(chr(int(each[:3], 8)) + each[3:] for each in others)


def serve() -> None:
    """Answer until the input ends; a command that waits for the pool does not delay others."""
    library, guard = Library(), threading.Lock()

    def reply(number: int, words: Sequence[str], given: str | None) -> None:
        try:
            said = answer(library, words, given or "")
        except (OSError, ValueError, KeyError):
            said = None
        line = json.dumps([number, *(said or ())]).encode() + b"\n"
        with guard:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    print(json.dumps(["ready"]), flush=True)
    for line in sys.stdin:
        threading.Thread(target=reply, args=json.loads(line), daemon=True).start()
    os._exit(0)  # even if a command waits for a pool that hangs


if __name__ == "__main__":
    serve()
