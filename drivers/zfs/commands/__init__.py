"""Running `zfs` and `zpool`: what they support and permit, and what their errors mean."""
