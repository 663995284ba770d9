"""The btrfs driver."""
