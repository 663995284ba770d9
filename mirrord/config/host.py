"""`mirrord.toml`: settings of this host and all of its mirrors. docs/config.md has each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mirrord.config import strict
from mirrord.config.reading import rates
from mirrord.core.errors import ConfigError
from mirrord.core.model import Caps, Definition
from mirrord.core.names import did_you_mean
from mirrord.core.units import is_port


class AlarmTargets(NamedTuple):
    """Where alarms are sent: a program, a web address, or neither (always to the journal)."""

    program: tuple[str, ...] = ()
    webhook: str = ""
    timeout_s: float = 10.0


class Host(NamedTuple):
    """The settings of this host.

    zone: for schedules without one. throttle, transfer_throttle: rates of all transfers together
    and of each. links: rates by the name of the link. group: may make changes through the socket;
    readers: may read through it ("owner", "group" or "everyone"). metrics: HOST:PORT for
    Prometheus, or "". log_json: lines of JSON instead of text. btrfs_receiver: what applies btrfs
    streams on this host.
    """

    zone: str = "UTC"
    limits: Caps = Caps()
    throttle: str = ""
    transfer_throttle: str = ""
    links: Mapping[str, str] = {}
    alarms: AlarmTargets = AlarmTargets()
    group: str = ""
    readers: str = "group"
    metrics: str = ""
    log_json: bool = False
    clock_jump_s: float = 60.0
    btrfs_receiver: str = "native"


def _webhook(value: Any) -> str:
    address = strict.text(value)
    scheme, _, rest = address.partition("://")
    if scheme not in ("https", "http") or not rest.partition("/")[0]:
        raise ValueError("expected an address that begins with https:// or http:// and a host")
    return address


def _listen(value: Any) -> str:
    address = strict.text(value)
    host, _, port = address.rpartition(":")
    if not host or not is_port(port) or not int(port):
        raise ValueError('expected an address and a port, for example "127.0.0.1:9744"')
    return address


_KEYS: strict.Keys = {
    "zone": strict.zone,
    "limits": {
        "transfers": strict.integer(1, 1000),
        "per_host": strict.integer(1, 1000),
        "per_filesystem": strict.integer(1, 1000),
    },
    "throttle": {"host": rates, "transfer": rates},
    "links": {"*": rates},
    "alarms": {"program": strict.program, "webhook": _webhook, "timeout": strict.duration},
    "daemon": {
        "group": strict.text,
        "readers": strict.one_of("owner", "group", "everyone"),
        "metrics": _listen,
        "clock_jump": strict.duration,
    },
    "log": {"json": strict.boolean},
    "btrfs": {"receiver": strict.one_of("native", "btrfs-progs")},
}


def load(file: Path, *, zone: Callable[[], str] = lambda: "UTC") -> Host:
    """The settings in `file`; the defaults if it does not exist. zone: returns the local zone."""
    try:
        source = strict.source_of(file, "the settings file")
    except FileNotFoundError:
        return Host(zone=zone())
    values = strict.read(source, str(file), _KEYS)
    daemon, alarms = values.get("daemon", {}), values.get("alarms", {})
    throttle = values.get("throttle", {})
    usual = Host()
    return Host(
        zone=values["zone"] if "zone" in values else zone(),
        limits=Caps(**values.get("limits", {})),
        throttle=throttle.get("host", ""),
        transfer_throttle=throttle.get("transfer", ""),
        links=values.get("links", {}),
        alarms=AlarmTargets(
            alarms.get("program", ()), alarms.get("webhook", ""), alarms.get("timeout", 10.0)
        ),
        group=daemon.get("group", ""),
        readers=daemon.get("readers", usual.readers),
        metrics=daemon.get("metrics", ""),
        log_json=values.get("log", {}).get("json", False),
        clock_jump_s=daemon.get("clock_jump", usual.clock_jump_s),
        btrfs_receiver=values.get("btrfs", {}).get("receiver", usual.btrfs_receiver),
    )


def check_links(definitions: Iterable[Definition], host: Host, file: str) -> None:
    """`ConfigError` when a mirror uses a link without a rate, which would be unlimited."""
    for definition in definitions:
        link = definition.pace.link
        if link and link not in host.links:
            raise ConfigError(
                f"no link is called '{link}'",
                where=definition.file,
                hint=did_you_mean(
                    link, host.links, f'Add it to {file}: [links], {link} = "20MiB/s".'
                ),
            )
