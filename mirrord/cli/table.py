"""The commands: name -> (module under `mirrord.cli.commands`, panel of the help page)."""

_MIRROR = "Mirrors"
_FAILOVER = "Failing over and back"
_LOOK = "Looking"
_SERVICE = "The service"
_HOSTS = "Other hosts"
_PLANNING = "Before there is a mirror"
_OTHER = "Other"

COMMANDS: dict[str, tuple[str, str]] = {
    "create": ("create", _MIRROR),
    "initialize": ("initialize", _MIRROR),
    "update": ("update", _MIRROR),
    "abort": ("abort", _MIRROR),
    "quiesce": ("quiesce", _MIRROR),
    "resume": ("resume", _MIRROR),
    "release": ("release", _MIRROR),
    "delete": ("delete", _MIRROR),
    "break": ("break_off", _FAILOVER),
    "resync": ("resync", _FAILOVER),
    "reverse": ("reverse", _FAILOVER),
    "restore": ("restore", _FAILOVER),
    "resume-operation": ("resume_operation", _FAILOVER),
    "change-source": ("change_source", _FAILOVER),
    "adopt": ("adopt", _FAILOVER),
    "status": ("status", _LOOK),
    "history": ("history", _LOOK),
    "snapshots": ("snapshots", _LOOK),
    "delta": ("delta", _LOOK),
    "explain": ("explain", _LOOK),
    "watch": ("live", _LOOK),
    "schedule": ("schedule", _SERVICE),
    "throttle": ("throttle", _SERVICE),
    "prune": ("prune", _SERVICE),
    "alarms": ("alarms", _SERVICE),
    "monitor": ("monitor", _SERVICE),
    "reload": ("reload", _SERVICE),
    "daemon": ("daemon", _SERVICE),
    "agent": ("agent", _HOSTS),
    "pki": ("pki", _HOSTS),
    "host": ("host", _HOSTS),
    "trace": ("trace", _PLANNING),
    "analyze": ("analyze", _PLANNING),
    "config": ("config", _OTHER),
    "volume": ("volume", _OTHER),
    "demo": ("demo", _OTHER),
}
