"""Drivers: one folder for each kind of volume. `mirrord.drivers.base` is their contract."""
