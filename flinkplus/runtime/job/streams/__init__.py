"""Streaming DataFrames as input: their queries run in the driver, beside the job.

Ring 2. Process: driver. Threads: one for each query, and Spark's own, which calls for each batch.
"""
