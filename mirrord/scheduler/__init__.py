"""What runs when: due times, the queue with its limits, retries, alarms. Reads no clock
but `mirrord.system.clock` and starts nothing itself: the daemon and the simulation do.
"""
