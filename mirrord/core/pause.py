"""What is known of a pause: how long each member's application stood still. Pure."""

import json
from typing import NamedTuple

from mirrord.core.units import format_duration

#: The longest `pause_max`: the application stands still meanwhile.
PAUSE_MAX_S = 60


class Resumed(NamedTuple):
    """The end of a pause, for each pauser in seconds: from the first request to its end, and from
    the request to resume. problems: why some were not resumed.
    """

    pause_s: list[float]
    resume_s: list[float]
    problems: list[str]


class LeftPaused(NamedTuple):
    """An application that could not be resumed, and may still be paused. mark: what tells it from a
    later one of that name. host: "" for this one. why: the reason.
    """

    pauser: str
    mark: str = ""
    host: str = ""
    why: str = ""

    def line(self) -> str:
        """For people."""
        place = f" on host {self.host}" if self.host else ""
        return f"{self.pauser}{place} may still be paused: {self.why}"


class MemberPause(NamedTuple):
    """The pause of the application of one member, in milliseconds, by the clock of its host.
    confirm_ms: from the first request to pause until it was paused. snapshot_ms: how long taking
    the snapshot took. resume_ms: from the request to resume until it ran. pause_ms: from the first
    request until it ran. network_ms: how long the requests to pause and to resume, and their
    answers, were under way to another host. problem: why it was not resumed, and may still be
    paused; or "".
    """

    member: str
    pauser: str
    confirm_ms: float
    snapshot_ms: float
    resume_ms: float
    pause_ms: float
    network_ms: float = 0.0
    problem: str = ""


class PauseReport(NamedTuple):
    """The pause of a set: of each member that has a pauser."""

    members: tuple[MemberPause, ...]

    @property
    def longest_ms(self) -> float:
        """The pause of the application that stood still for longest."""
        return max(one.pause_ms for one in self.members)

    @property
    def problems(self) -> str:
        """Which applications may still be paused, and why; or ""."""
        found = [f"{one.pauser} ({one.problem})" for one in self.members if one.problem]
        return "; ".join(dict.fromkeys(found))

    def encoded(self) -> str:
        """As the catalogue has it: JSON."""
        return json.dumps([one._asdict() for one in self.members])

    def line(self) -> str:
        """For people."""
        return f"paused for {format_ms(self.longest_ms)}"

    def details(self) -> list[str]:
        """A line for each member."""
        return [
            f"{one.member + ': ' if one.member else ''}{one.pauser}: paused for "
            f"{format_ms(one.pause_ms)} (confirmed after {format_ms(one.confirm_ms)}, snapshot "
            f"{format_ms(one.snapshot_ms)}, resumed in {format_ms(one.resume_ms)}"
            f"{f', network {format_ms(one.network_ms)}' if one.network_ms else ''})"
            f"{f'; it may still be paused: {one.problem}' if one.problem else ''}"
            for one in self.members
        ]


def decoded(text: str) -> PauseReport | None:
    """The report that was encoded; None for ""."""
    if not text:
        return None
    return PauseReport(tuple(MemberPause(**one) for one in json.loads(text)))


def format_ms(milliseconds: float) -> str:
    """`0.8 ms`, `47 ms`, `1.2 s`."""
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    return format_duration(milliseconds / 1000)
