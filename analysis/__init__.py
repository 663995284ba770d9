"""What a mirror would transfer, cost and risk on a traced workload: replay, simulation, reports."""
