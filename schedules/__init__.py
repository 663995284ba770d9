"""When to run, how fast, and what to keep: pure functions that never read a clock.

Instants are parameters: `*_ns` is nanoseconds since 1970 UTC, `*_s` seconds. docs/schedules.md
describes the syntax for administrators.
"""
