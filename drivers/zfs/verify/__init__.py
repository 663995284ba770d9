"""Verification: trees of digests of snapshots, and what the pool says of itself."""
