"""The link that a mirror needs and the data it would lose: lag, data at risk, space of snapshots.

An update's snapshot is taken when its interval ends; its transfer begins then, or when the
previous transfer has ended, and the copy shows it when it has arrived completely. An update takes
its fixed time and then its bytes at the link's rate; one without bytes takes no time. At the start
of the trace the copy is assumed to be up to date; after its end nothing is written, and the updates
go on until all has arrived. A failure loses the writes made since the snapshot that the copy
shows: acknowledged bytes, so more than the blocks that a later update would send.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirrord.analysis.grids import NS
from mirrord.analysis.numbers import Floats, Longs, Updates, Workload
from mirrord.analysis.results import Writes
from mirrord.schedules.rates import Rates

#: Bytes per second that represent "unlimited".
_UNLIMITED = 1e15
#: Less than this is not late, ns: times are computed as floating-point numbers.
_EXACT_NS = 1000
#: Less time than this for a transfer is no time, seconds.
_TIME_MIN_S = 1e-3


@dataclass(frozen=True)
class LinkNeed:
    """The slowest link on which every update ends before the next one: bytes per second.

    at_ns: the snapshot of the update that needs it.
    """

    rate: float
    at_ns: int


@dataclass(frozen=True)
class Showing:
    """Which snapshot the copy shows: from `since_ns[k]` to the next that of `snapshot_ns[k]`.

    Both begin with the start of the trace; `end_ns` ends the last period: the end of the trace, or
    when the last update has arrived. last_ns: the end of the trace.
    """

    since_ns: Longs
    snapshot_ns: Longs
    end_ns: int
    last_ns: int

    @property
    def until_ns(self) -> Longs:
        """When each period ends."""
        return np.append(self.since_ns[1:], self.end_ns)

    @property
    def oldest(self) -> tuple[float, bool]:
        """The maximum age of the copy, seconds; and whether it was reached only after the end of
        the trace, so that more writes could have made it older.
        """
        until_ns = self.until_ns
        ages = until_ns - self.snapshot_ns
        worst = int(ages.argmax())
        return float(ages[worst]) / NS, bool(until_ns[worst] > self.last_ns)


@dataclass(frozen=True)
class Lag:
    """The age of the copy, seconds: mean, median, 95th percentile, worst.

    at_least: the worst age was reached only after the end of the trace.
    """

    mean_s: float
    median_s: float
    p95_s: float
    worst_s: float
    #: The distribution: at `ages_s[i]` or less for the share `shares[i]` of the time.
    ages_s: Floats
    shares: Floats
    at_least: bool


@dataclass(frozen=True)
class Loss:
    """Bytes lost at a failure: at a random moment (expected), at the worst one.

    at_least: the worst moment is the end of the trace, after which nothing is known, or the link
    carries so little that the mean is more. worst: an upper bound, within the writes of two bins.
    """

    expected: float
    worst: float
    worst_at_ns: int
    at_least: bool = False


def available_ns(updates: Updates) -> Longs:
    """How long each update may take to end before the next one's snapshot.

    For the last update this is the fixed interval, or else the previous one.
    """
    if not len(updates):
        return np.zeros(0, np.int64)
    gaps = np.diff(updates.end_ns)
    last = (
        round(updates.seconds * NS)
        if updates.seconds is not None
        else int(gaps[-1])
        if len(gaps)
        else int(updates.end_ns[0] - updates.start_ns[0])
    )
    gaps = np.append(gaps, last)
    if updates.seconds is not None and len(gaps) > 1:
        # The last, partial interval is ended by the trace, not by the schedule.
        gaps[-2] = max(gaps[-2], last)
    return np.asarray(np.maximum(gaps, 1))


def link_need(updates: Updates, kind: str, overhead_s: float = 0.0) -> LinkNeed:
    """The slowest link, bytes per second, on which each update ends before the next one begins."""
    time_s = np.maximum(available_ns(updates) / NS - overhead_s, _TIME_MIN_S)
    needs = updates.sizes(kind) / time_s
    if not len(needs):
        return LinkNeed(0.0, 0)
    worst = int(needs.argmax())
    return LinkNeed(float(needs[worst]), int(updates.end_ns[worst]))


def commits(
    updates: Updates, kind: str, link: float | Rates, *, epoch_ns: int = 0, overhead_s: float = 0.0
) -> Longs:
    """When each update has arrived, ns.

    link: bytes per second, or the rates of a calendar (then `epoch_ns` is the Unix time of the
    trace's zero). overhead_s: fixed time of an update besides its transfer, seconds.
    """
    sizes = updates.sizes(kind).astype(np.float64)
    if not len(sizes):
        return np.zeros(0, np.int64)
    if isinstance(link, Rates):
        if not link.constant:
            return _by_the_hour(updates, sizes, link, epoch_ns, overhead_s)
        link = link.at(0) or _UNLIMITED
    took = np.where(sizes > 0, (sizes / link + overhead_s) * NS, 0.0)
    # A queue is a running maximum: of when each would begin if it never had to wait again.
    done = np.cumsum(took)
    begin = (updates.end_ns - updates.end_ns[0]) - (done - took)
    ends = updates.end_ns[0] + np.ceil(done + np.maximum.accumulate(begin)).astype(np.int64)
    return np.asarray(np.maximum(ends, updates.end_ns))


def _by_the_hour(
    updates: Updates, sizes: Floats, link: Rates, epoch_ns: int, overhead_s: float
) -> Longs:
    """When each update has arrived over a link whose rate changes."""
    overhead_ns = overhead_s * NS
    first_ns, end_ns = int(updates.start_ns[0]), int(updates.end_ns[-1])
    last_ns = end_ns + round(len(sizes) * overhead_ns)
    times, carried = capacity(link, first_ns, last_ns, epoch_ns, float(sizes.sum()))
    since = (times - first_ns).astype(np.float64)
    free, arrived = 0.0, []
    for size, at_ns in zip(sizes.tolist(), (updates.end_ns - first_ns).tolist(), strict=True):
        free = max(free, float(at_ns))
        if size:
            before = np.interp(free + overhead_ns, since, carried)
            free = float(np.interp(before + size, carried, since))
        arrived.append(free)
    return np.asarray(first_ns + np.ceil(arrived).astype(np.int64))


def capacity(
    link: Rates, first_ns: int, last_ns: int, epoch_ns: int, more: float = 0.0
) -> tuple[Longs, Floats]:
    """Instants, and the bytes that the link can have carried by each; linear in between.

    They last until `last_ns`, and then until `more` bytes could have been carried.
    """
    at_ns = first_ns
    times, carried = [at_ns], [0.0]
    while True:
        rate = link.at(at_ns + epoch_ns) or _UNLIMITED
        change = link.next_change(at_ns + epoch_ns)
        enough = max(at_ns, last_ns) + int(more / rate * NS) + NS
        end_ns = enough if change is None else min(change - epoch_ns, enough)
        times.append(end_ns)
        carried.append(carried[-1] + rate * (end_ns - at_ns) / NS)
        if end_ns == enough:
            return np.array(times, np.int64), np.array(carried)
        at_ns = end_ns


def sustains(
    updates: Updates, kind: str, link: float | Rates, *, epoch_ns: int = 0, overhead_s: float = 0.0
) -> bool:
    """Whether all updates together take no longer than the time that they cover. Otherwise the
    queue grows as long as the workload lasts, whatever the delay that is accepted.
    """
    sizes = updates.sizes(kind)
    if not len(sizes):
        return True
    first_ns, last_ns = int(updates.start_ns[0]), int(updates.end_ns[-1])
    time_s = (last_ns - first_ns) / NS - overhead_s * int(np.count_nonzero(sizes))
    if isinstance(link, Rates):
        times, carried = capacity(link, first_ns, last_ns, epoch_ns)
        link = float(np.interp(last_ns, times, carried)) / max((last_ns - first_ns) / NS, 1e-9)
    return time_s > 0 and float(sizes.sum()) <= link * time_s


def late(updates: Updates, commit_ns: Longs) -> Longs:
    """The indices of the updates that have not ended when the next one's snapshot is taken.

    The last one of a schedule is never late, as the trace has no next one.
    """
    due_ns = updates.end_ns + available_ns(updates)
    found = np.flatnonzero(commit_ns > due_ns + _EXACT_NS)
    return found if updates.seconds is not None else found[found < len(updates) - 1]


def showing(workload: Workload, updates: Updates, commit_ns: Longs) -> Showing:
    """Which snapshot the copy shows over the trace, and until all updates have arrived."""
    since = np.append(workload.first_ns, commit_ns)
    snapshot = np.append(workload.first_ns, updates.end_ns)
    end_ns = max(workload.last_ns, int(since[-1]))
    # Of updates that arrive at the same time the newest is shown; the last one ends the queue.
    newest = np.append(since[1:] > since[:-1], True) & (since < end_ns)
    newest[0] |= not newest.any()
    return Showing(since[newest], snapshot[newest], end_ns, workload.last_ns)


def lag(shown: Showing) -> Lag:
    """The distribution of the copy's age: exact, as the age grows linearly between commits."""
    low = (shown.since_ns - shown.snapshot_ns) / NS
    high = (shown.until_ns - shown.snapshot_ns) / NS
    total = float((high - low).sum())
    if total <= 0:
        zero = np.zeros(2)
        return Lag(0.0, 0.0, 0.0, 0.0, zero, np.array([0.0, 1.0]), False)
    edges, where = np.unique(np.concatenate([low, high]), return_inverse=True)
    steps = np.concatenate([np.ones(len(low)), -np.ones(len(high))])
    at_once = np.cumsum(np.bincount(where, weights=steps, minlength=len(edges)))
    shares = np.append(0.0, np.cumsum(at_once[:-1] * np.diff(edges)) / total)
    mean = float((high**2 - low**2).sum() / 2 / total)
    # Of equal shares the first age counts: for that share of the time the copy is not older.
    keep = np.append(True, np.diff(shares) > 0)
    median, p95 = np.interp([0.5, 0.95], shares[keep], edges[keep])
    worst, at_least = shown.oldest
    return Lag(mean, float(median), float(p95), worst, edges, shares, at_least)


class Account:
    """The sum written by any moment, from a series of values per bin (bytes, or money)."""

    def __init__(self, writes: Writes, values: Floats | Longs | None = None) -> None:
        series = np.asarray(writes.bytes if values is None else values, dtype=np.float64)
        self._start_ns = writes.start_ns
        self._bin_s = writes.bin_ns / NS
        self._sum = np.append(0.0, np.cumsum(series))
        # The integral of the sum over time, at the edges of the bins.
        self._area = np.append(0.0, np.cumsum((self._sum[1:] + self._sum[:-1]) / 2 * self._bin_s))

    def _place(self, at_ns: Longs) -> tuple[Longs, Floats]:
        exact = (at_ns - self._start_ns) / NS / self._bin_s
        exact = np.clip(exact, 0, len(self._sum) - 1)
        whole = np.minimum(exact.astype(np.int64), max(len(self._sum) - 2, 0))
        return whole, exact - whole

    def by(self, at_ns: Longs) -> Floats:
        """The sums written by these moments; linear within a bin."""
        whole, part = self._place(np.asarray(at_ns))
        rise = self._sum[np.minimum(whole + 1, len(self._sum) - 1)] - self._sum[whole]
        return np.asarray(self._sum[whole] + part * rise)

    def _lost(self, at_ns: Longs, snapshot_ns: Longs) -> Floats:
        """The most that can have been written since these snapshots: all of the bins in which both
        moments are, as it is not known when within a bin it was written.
        """
        whole, part = self._place(snapshot_ns)
        kept = self._sum[whole + (part >= 1)]
        whole, part = self._place(at_ns)
        return np.asarray(self._sum[np.minimum(whole + (part > 0), len(self._sum) - 1)] - kept)

    def _area_by(self, at_ns: Longs) -> Floats:
        whole, part = self._place(at_ns)
        rise = self._sum[np.minimum(whole + 1, len(self._sum) - 1)] - self._sum[whole]
        inside = self._area[whole] + self._bin_s * part * (self._sum[whole] + part * rise / 2)
        after_s = (at_ns - self._start_ns) / NS - (len(self._sum) - 1) * self._bin_s
        return np.asarray(inside + np.maximum(after_s, 0) * self._sum[-1])

    def loss(self, shown: Showing) -> Loss:
        """The loss at a failure at a random moment of the trace, and at the worst one.

        What is written is at risk until it has arrived, also after the end of the trace: the
        expected loss is that of a workload that goes on, whose mean over time includes it.
        """
        until_ns = shown.until_ns
        kept = self.by(shown.snapshot_ns)
        area = self._area_by(until_ns) - self._area_by(shown.since_ns)
        seconds = (until_ns - shown.since_ns) / NS
        # Between commits the loss only grows: it is greatest just before the next one.
        before = self._lost(until_ns, shown.snapshot_ns)
        worst = int(before.argmax())
        span_s = (shown.last_ns - int(shown.since_ns[0])) / NS
        expected = float((area - kept * seconds).sum() / max(span_s, 1e-9))
        # (A mean that is more than the worst is that of a queue that grows.)
        last = bool(until_ns[worst] >= shown.last_ns or expected > before[worst])
        at_ns = min(int(until_ns[worst]), shown.last_ns)
        return Loss(max(expected, 0.0), float(before[worst]), at_ns, last)

    def course(self, shown: Showing, points: int) -> tuple[Longs, Floats]:
        """The loss at a failure over time: the maximum in each of `points` periods."""
        ends = shown.until_ns
        start_ns = int(shown.since_ns[0])
        edges = np.linspace(start_ns, shown.end_ns, points + 1).astype(np.int64)
        at = np.unique(np.concatenate([edges, ends, shown.since_ns]))
        # At the moment of a commit the loss before it counts: that of the period that ends there.
        place = np.maximum(np.searchsorted(shown.since_ns, at, side="left") - 1, 0)
        lost = self._lost(at, shown.snapshot_ns[place])
        slot = np.clip(np.searchsorted(edges, at, side="left") - 1, 0, points - 1)
        most = np.zeros(points)
        np.maximum.at(most, slot, lost)
        return edges[1:], most


def peak_rate(writes: Writes, window_s: float) -> float:
    """The highest write rate over any window of this length, bytes per second: a second may begin
    at any instant, longer windows with a bin.

    A synchronous mirror's link must carry it if writers may wait for at most `window_s`.
    """
    if window_s == 1 and writes.busiest:
        return float(writes.busiest)
    bins = max(1, round(window_s * NS / writes.bin_ns))
    total = np.append(0, np.cumsum(writes.bytes))
    if bins >= len(total):
        return float(total[-1]) / window_s
    return float((total[bins:] - total[:-bins]).max()) / (bins * writes.bin_ns / NS)


def waiting(writes: Writes, carried: float | Floats) -> tuple[Floats, Floats]:
    """Of each bin, the mean and the maximum of the bytes that wait for a link; carried: by the link
    in each bin.

    The writes of a bin are taken to come together at its beginning: their true times within it are
    not known, and even on a fast link a write is not at the other end at once.
    """
    net = np.cumsum(writes.bytes - carried)
    left = net - np.minimum(np.minimum.accumulate(net), 0.0)  # at the end of the bin
    most = np.append(0.0, left[:-1]) + writes.bytes
    mean = np.where(most > carried, most - np.asarray(carried) / 2, most**2 / 2 / carried)
    return np.asarray(mean), np.asarray(most, dtype=np.float64)


def snapshot_space(updates: Updates, kind: str, keep: int) -> int:
    """Maximum of the bytes held by `keep` reference snapshots over the trace.

    A snapshot holds the old version of each block written since. Blocks that were empty before hold
    nothing, and a trace does not tell which were: so this is an upper bound. The newest snapshot
    holds what the following update overwrites; `keep` snapshots hold that of as many updates.
    """
    sizes = updates.sizes(kind)
    if not len(sizes):
        return 0
    total = np.append(0, np.cumsum(sizes))
    width = min(keep, len(sizes))
    return int((total[width:] - total[:-width]).max())
