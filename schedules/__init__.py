"""When to run, how fast, and what to keep: pure functions that never ask a clock.

Instants are parameters: `*_ns` is nanoseconds since 1970 UTC, `*_s` seconds. docs/schedules.md is
the language for administrators.
"""
