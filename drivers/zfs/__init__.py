"""The OpenZFS driver: file systems and volumes, through the programs `zfs` and `zpool`."""
