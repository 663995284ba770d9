"""Traces of a workload: the record, readers, writers, recorder and generators."""
