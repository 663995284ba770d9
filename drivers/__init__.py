"""Drivers: one folder for each kind of volume. `mirrord.drivers.contract` is their contract."""
