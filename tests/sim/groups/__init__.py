"""Groups over several hosts: the real coordinator, agents and guards on simulated ports."""
