"""A dataset as a volume: facts and snapshots, and the role `Failover` of the contract."""
