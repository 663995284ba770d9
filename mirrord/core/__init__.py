"""The vocabulary of mirrord: pure values and decisions, no I/O."""
