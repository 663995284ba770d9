"""mirrord: SnapMirror for Linux, over btrfs, OpenZFS and block volumes."""

__version__ = "0.1.0"
