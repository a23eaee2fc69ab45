"""One driver for each machine: the job, its checkpoints, local failover. Each carries out its machine's effects.

Ring 2. Process: driver. Thread: the coordinator's loop.
"""
