"""Relationship records of later epochs."""

from __future__ import annotations

from mirrord.core.relationship import Intent, Relationship


def raised(record: Relationship, intent: Intent) -> Relationship:
    """The record of the next epoch."""
    return record._replace(epoch=record.epoch + 1, intent=intent, in_sync_until_ns=None)
