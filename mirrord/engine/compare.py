"""Compares two copies of a snapshot by their trees of digests.

Both ends compute their tree at the same time, each from its own disk. The roots are compared first;
only where nodes differ, their children are (docs/verify.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import NamedTuple

from mirrord.core.errors import ProtocolError, Refused, Unsupported
from mirrord.core.text import escaped
from mirrord.core.verification import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    NAMED_MAX,
    NODES_MAX,
    UNREADABLE,
    Difference,
    VerifyMode,
    VerifyNode,
    VerifyProgress,
    VerifyRequest,
)
from mirrord.drivers.contract import Capability, Driver
from mirrord.drivers.verification import Verification, verification_of
from mirrord.engine.crew import Crew

_STEP_S = 1.0
_DIGEST_BYTES = 32
#: What has an empty path.
WHOLE = "the volume itself"


class Part(NamedTuple):
    """What is compared by one tree: a member, or a dataset of it. name: "" when there is one."""

    name: str
    source: Verification
    destination: Verification
    guid: str
    base: str


class Comparison(NamedTuple):
    """What was found for one part. differences: at most `NAMED_MAX` of them."""

    part: Part
    source: VerifyProgress
    destination: VerifyProgress
    differences: tuple[Difference, ...] = ()

    def ends(self) -> Iterator[tuple[str, VerifyProgress]]:
        """Both, with their names."""
        yield "source", self.source
        yield "destination", self.destination

    def unproven(self) -> Iterator[tuple[str, str]]:
        """The ends that cannot read it at all, and why."""
        return ((end, each.why) for end, each in self.ends() if each.done and not each.root)


def ends_of(
    drivers: Sequence[Driver], needed: Capability = Capability.VERIFY
) -> list[Verification]:
    """The drivers as volumes that can be verified; raises `Unsupported`."""
    for driver in drivers:
        if needed not in driver.capabilities:
            when = " before an update is shown" if needed is Capability.VERIFY_RECEIVED else ""
            raise Unsupported(
                f"this volume cannot be verified{when}",
                where=str(driver),
                why="volumes of its kind do not support that, or its host has an older mirrord",
                hint="See docs/verify.md for what each kind of volume has.",
            )
    return [verification_of(driver) for driver in drivers]


def mode_of(found: Sequence[Comparison]) -> VerifyMode:
    """What was done at all ends."""
    modes = {end.mode for one in found for end in (one.source, one.destination)}
    return modes.pop() if len(modes) == 1 else VerifyMode.CHANGED


def compare(part: Part, request: VerifyRequest) -> Comparison:
    """Compute both trees and compare them. What the ends wait with can cancel it (`Waiting`)."""
    source, destination = part.source, part.destination
    crew = Crew(2)
    try:
        begun = Comparison(
            part, source.verify_step(request, 0.0), destination.verify_step(request, 0.0)
        )
        if any(True for _ in begun.unproven()):
            return begun
        works = [partial(_computed, crew, end, request) for end in (source, destination)]
        here, there = crew.run(works)
        differences: tuple[Difference, ...] = ()
        if here.root != there.root or here.unreadable or there.unreadable:
            named = Descent(source, destination, request).differences()
            differences = tuple(islice(named, NAMED_MAX)) or (Difference("", "unreadable"),)
    finally:
        source.verify_end()
        destination.verify_end()
    return Comparison(part, here, there, differences)


def _computed(crew: Crew, end: Verification, request: VerifyRequest) -> VerifyProgress:
    while True:
        crew.check()
        end.waiting.look()
        found = end.verify_step(request, _STEP_S)
        if found.done:
            return found


class Descent:
    """Compares the two trees from the root down."""

    def __init__(
        self, source: Verification, destination: Verification, request: VerifyRequest
    ) -> None:
        self._source, self._destination, self._request = source, destination, request

    def differences(self) -> Iterator[Difference]:
        """All paths that differ, folder by folder."""
        pending = [(self._root(self._source), self._root(self._destination))]
        while pending:
            one, other = pending.pop()
            yield from self._of_pair(one, other)
            if one.kind == other.kind == "d":
                folder, copy = self._folders(one.path)
                pending += reversed(_unproven(folder, copy))
                yield from (Difference(path, "missing") for path in sorted(folder.keys() - copy))
                yield from (Difference(path, "extra") for path in sorted(copy.keys() - folder))

    def _root(self, end: Verification) -> VerifyNode:
        for node in self._nodes(end, "."):
            return node
        raise ProtocolError("the other end has no root of its tree", where=str(end))

    def _folders(self, path: str) -> tuple[dict[str, VerifyNode], dict[str, VerifyNode]]:
        """What both ends have in a folder. When one says that it has so many more that no more of
        them are named, the rest is not read.
        """
        here, there = dict[str, VerifyNode](), dict[str, VerifyNode]()
        ends = self._nodes(self._source, path), self._nodes(self._destination, path)
        for nodes in zip_longest(*ends):
            for found, node in zip((here, there), nodes, strict=True):
                if node is not None:
                    found[node.path] = node
            if abs(len(here) - len(there)) > NAMED_MAX:
                break
        return here, there

    def _nodes(self, end: Verification, folder: str) -> Iterator[VerifyNode]:
        after = ""
        while True:
            end.waiting.look()
            page = end.verify_nodes(self._request, folder, after, NODES_MAX)
            yield from page
            if len(page) < NODES_MAX:
                return
            if not page[-1].path > after:
                raise Refused("the other end repeats its answer", where=str(end))
            after = page[-1].path

    def _of_pair(self, one: VerifyNode, other: VerifyNode) -> Iterator[Difference]:
        for node, end in ((one, "source"), (other, "destination")):
            if node.unreadable and node.kind != "d":
                unreadable = self._unreadable(node, end, _blocks_of_both(one, other))
                yield Difference(node.path, "unreadable", end, unreadable)
        if one.kind != other.kind:
            yield Difference(one.path, "type")
            return
        if one.metadata != other.metadata:
            yield Difference(one.path, "metadata")
        if one.content != other.content:
            ranges = self._ranges(one, other)
            if ranges or not (one.unreadable or other.unreadable):
                yield Difference(one.path, "content", ranges=ranges)
        elif one.metadata == other.metadata and one.kind != "d" and one.node != other.node:
            yield Difference(one.path, "link")

    def _unreadable(self, node: VerifyNode, end: str, most: int) -> tuple[tuple[int, int], ...]:
        if node.kind != "f":
            return ()
        at = self._source if end == "source" else self._destination
        digests = enumerate(self._blocks(at, node, most))
        return _joined((n for n, digest in digests if digest == UNREADABLE), node.size)

    def _ranges(self, one: VerifyNode, other: VerifyNode) -> tuple[tuple[int, int], ...]:
        both, size = _blocks_of_both(one, other), max(one.size, other.size)
        here = self._blocks(self._source, one, both)
        there = self._blocks(self._destination, other, both)
        pairs = enumerate(zip_longest(here, there))
        wrong = (n for n, two in pairs if two[0] != two[1] and UNREADABLE not in two)
        found, rest = list(_joined(wrong, size)), both * BLOCK_BYTES
        if rest < size:  # only one of them has that
            first = found.pop()[0] if found and sum(found[-1]) == rest else rest
            found.append((first, size - first))
        return tuple(found)

    def _blocks(self, end: Verification, node: VerifyNode, most: int) -> Iterator[bytes]:
        """The digests of the first `most` blocks of a file, as far as there are any."""
        first = 0
        while first < most:
            end.waiting.look()
            count = min(BLOCKS_MAX, most - first)
            page = end.verify_blocks(self._request, node.path, first, count)
            if not page:
                return
            if len(page) % _DIGEST_BYTES or len(page) > count * _DIGEST_BYTES:
                raise ProtocolError("malformed digests from the other end", where=str(end))
            for at in range(0, len(page), _DIGEST_BYTES):
                yield page[at : at + _DIGEST_BYTES]
            first += len(page) // _DIGEST_BYTES


def _blocks_of_both(one: VerifyNode, other: VerifyNode) -> int:
    """How many blocks of a file both ends say that they have: one of them may say anything."""
    return -(-min(one.size, other.size) // BLOCK_BYTES)


def _unproven(
    here: Mapping[str, VerifyNode], there: Mapping[str, VerifyNode]
) -> list[tuple[VerifyNode, VerifyNode]]:
    """The pairs of one folder that are not proven equal."""
    pairs = [(here[path], there[path]) for path in sorted(here.keys() & there.keys())]
    return [
        (one, other)
        for one, other in pairs
        if one.node != other.node or one.unreadable or other.unreadable
    ]


def _joined(numbers: Iterator[int], size: int) -> tuple[tuple[int, int], ...]:
    """Blocks as ranges of bytes of a file of that size."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    ends = ((first * BLOCK_BYTES, min(end * BLOCK_BYTES, size)) for first, end in found)
    return tuple((first, end - first) for first, end in ends)


def line(one: Difference) -> str:
    """A difference in one line."""
    at = ", ".join(f"{first}-{first + length - 1}" for first, length in one.ranges[:5])
    if len(one.ranges) > 5:
        at += f", … ({len(one.ranges)} ranges)"
    what = f"{one.what} at the {one.end}" if one.end else one.what
    return f"{what:12} {escaped(one.path) or WHOLE}" + (f", bytes {at}" if at else "")
