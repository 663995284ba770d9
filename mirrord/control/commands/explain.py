"""Explain the state of a mirror, and which commands change it.

Panel: Monitoring 5

Shows the reasons for the current state, and which command changes it.
"""

from __future__ import annotations

from mirrord.control.command import MirrorName, Right, Service, command
from mirrord.core.results import Result


@command(Right.READ)
def explain(service: Service, name: MirrorName) -> Result:
    from mirrord.engine import report

    return service.look(name, report.explain)
