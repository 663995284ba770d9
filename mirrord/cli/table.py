"""The commands, by panel of the help page. A command's module is `mirrord.cli.commands.NAME`."""

from __future__ import annotations

import keyword
import shutil
import textwrap

_EPILOG = "'mirrord COMMAND --help' describes a command. --debug shows tracebacks."
_SUMMARY = "Keeps a second, consistent copy of a volume: SnapMirror for Linux."

PANELS: dict[str, dict[str, str]] = {
    "Mirrors": {
        "create": "Define a mirror. No data is transferred.",
        "initialize": "Transfer the whole volume for the first time.",
        "update": "Transfer what changed at the source since the last update.",
        "abort": "Stop a running transfer. The destination shows what it showed before.",
        "quiesce": "Start no new transfers. A running one finishes. Survives restarts.",
        "resume": "End a quiesce: transfers are allowed again.",
        "throttle": "Limit the transfer rate of a mirror, also of a running transfer.",
        "prune": "Delete reference snapshots that no retention rule keeps, at both ends.",
        "release": "Delete a mirror's reference snapshots at the source.",
        "delete": "Delete a mirror. The destination keeps its data.",
    },
    "Failover and failback": {
        "break": "Make the destination writable, without the source.",
        "resync": "Mirror again after a break: the source wins.",
        "reverse": "Swap the roles of source and destination.",
        "restore": "Restore files, or the whole volume, from a snapshot of the destination.",
        "resume-operation": "Finish an interrupted resync, reverse or restore.",
        "change-source": "Continue from another source that has the base snapshot.",
        "takeover": "Take control of a mirror from another host.",
        "adopt": "Rebuild a mirror's definition from the record at one of its ends.",
    },
    "Monitoring": {
        "status": "Show state, activity and lag of one mirror or of all.",
        "history": "Show the last transfers and events, oldest first.",
        "snapshots": "List the snapshots at both ends, or delete a diverged one.",
        "delta": "Show what the next update would send.",
        "explain": "Explain the state of a mirror, and which commands change it.",
        "watch": "Show all mirrors in a table that is updated until Ctrl-C.",
        "alarms": "Show the active alarms, newest first.",
        "monitor": "Print one line; the exit status is that of a monitoring plugin.",
    },
    "Daemon": {
        "daemon": "Run the daemon: schedules, alarms, the socket (docs/service.md).",
        "reload": "Make the daemon read all definitions again.",
        "schedule": "Show schedules and the times of the next runs (docs/schedules.md).",
    },
    "Hosts": {
        "agent": "Serve this host's volumes to another host (docs/hosts.md).",
        "host": "Manage other hosts in hosts.d/*.toml (docs/hosts.md).",
        "pki": "Manage certificates for TLS without SSH (docs/security.md).",
    },
    "Planning": {
        "trace": "Import, record and convert traces of a workload (docs/traces.md).",
        "analyze": "Report what a mirror would transfer, cost and risk (docs/analysis.md).",
    },
    "Other": {
        "config": "Check or migrate the definitions in mirrors.d/*.toml.",
        "volume": "Manage block volumes: create, read, write, import, export, check.",
        "demo": "Show a mirror at work in under a minute, and clean up.",
    },
}
COMMANDS = {name: help for commands in PANELS.values() for name, help in commands.items()}
_OPTIONS = {
    "--version": "Show the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell.",
    "-h, --help": "Show this message and exit.",
}


def module_of(name: str) -> str:
    """The module and the function of a command; a Python keyword has an underscore after it."""
    return f"{name}_" if keyword.iskeyword(name) else name.replace("-", "_")


def help_page() -> str:
    """The help page, from this table alone: it loads no command."""
    width = max(40, min(100, shutil.get_terminal_size().columns))
    indent = max(map(len, [*COMMANDS, *_OPTIONS])) + 4
    lines = ["Usage: mirrord [OPTIONS] COMMAND [ARGS]...", "", *textwrap.wrap(_SUMMARY, width)]
    for title, rows in {**PANELS, "Options": _OPTIONS}.items():
        lines += ["", f"{title}:"]
        for name, help in rows.items():
            text = textwrap.wrap(help, width - indent)
            lines += [
                f"  {name:<{indent - 2}}{text[0]}",
                *(" " * indent + more for more in text[1:]),
            ]
    return "\n".join([*lines, "", *textwrap.wrap(_EPILOG, width)])
