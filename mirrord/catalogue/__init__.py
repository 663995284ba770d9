"""The catalogue: history and running operations, in SQLite. The only package that uses SQL."""
