//! Kernels of the replay: what a mirror would transfer of a traced workload.
