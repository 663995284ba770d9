"""What a mirror would move, cost and risk on a traced workload: replay, simulation, reports."""
