"""Live mirrors: what the verbs do with the processes at both ends, and their supervision."""
