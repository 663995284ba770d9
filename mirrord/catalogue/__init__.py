"""The catalogue: what happened and what is under way, in SQLite. The only room that speaks SQL."""
