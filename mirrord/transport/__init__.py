"""Byte streams to other hosts: unix sockets, SSH, TLS."""
