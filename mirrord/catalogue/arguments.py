"""The arguments of an operation, and their form in the table `operation`: JSON."""

import json
from typing import NamedTuple


class Arguments(NamedTuple):
    """What a verb's phases and recovery need to know; a field that the verb does not have has its
    default.

    name, sequence: of the snapshot that it takes, or keeps the losing side as. guid: of the set
    that the verb ends with. base: guid of that of the transfer, or that the source goes back to;
    None: none. base_name, taken_ns: of `guid`. mark: of the losing side as it was confirmed. epoch:
    that begins. chosen: name of the set to restore. kept: name of the diverged snapshot. kept_ns:
    when a checkpoint was kept. transfer: its id. show: the set is to be shown.
    """

    name: str = ""
    sequence: int = 0
    guid: str = ""
    base: str | None = None
    base_name: str = ""
    taken_ns: int = 0
    mark: str = ""
    epoch: int | None = None
    new_source: str = ""
    new_destination: str = ""
    planned: bool = False
    force: bool = False
    chosen: str = ""
    kept: str | None = None
    kept_ns: int | None = None
    estimate_bytes: int = 0
    transfer: str = ""
    show: bool = False


def encode(arguments: Arguments) -> str:
    """Without the fields that have their default."""
    return json.dumps(
        {
            key: value
            for key, value in arguments._asdict().items()
            if value != Arguments._field_defaults[key]
        }
    )


def decode(text: str) -> Arguments:
    """The inverse; fields of another version are left out."""
    known = json.loads(text)
    return Arguments(**{key: known[key] for key in Arguments._fields if known.get(key) is not None})
