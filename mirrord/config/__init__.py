"""Definitions: strict TOML, one file a mirror, that a person can keep in git."""
