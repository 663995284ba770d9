"""What runs when: due times, the queue with its limits, retries, alarms. Asks no clock of its own
but `mirrord.system.clock`, starts nothing itself: the daemon and the simulation do.
"""
