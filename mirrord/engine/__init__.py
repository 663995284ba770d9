"""The engine: plan (pure), transfer, the verbs of the life cycle, recovery, reports."""
