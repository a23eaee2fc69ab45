"""What a change of parallelism costs: of a running job, and between two runs; every output checked."""
