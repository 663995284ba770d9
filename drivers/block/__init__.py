"""The block driver."""
