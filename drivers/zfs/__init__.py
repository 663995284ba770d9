"""The OpenZFS driver: volumes are datasets, file systems and zvols; the transfer is `zfs send`'s."""
