"""Batches of partitions that the driver plans while the job runs: ``streamReader()`` of Python data sources of Spark.

Ring 2: calls users' code, reads and writes planned batches; ``position`` and ``planning`` are pure. Process: driver
(which plans) and slots (readers). Threads: that of the planner; the slot's loop; for each reader one that looks for
batches and one that reads partitions.
"""
