"""Receiving a stream into a dataset, and committing it as one step."""
