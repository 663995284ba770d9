"""Pausing the programs that write to the volumes of a mirror, while its snapshots are taken."""
