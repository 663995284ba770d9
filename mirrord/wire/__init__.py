"""The protocol between hosts, without I/O."""
