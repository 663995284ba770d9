"""The only place that touches clock, files, processes, randomness and the native code."""
