"""What the driver does for sources while the job runs: queries of streaming DataFrames, planners of data sources.

Ring 2. Process: driver. Threads: one for each query or planner, and Spark's own, which calls for each batch.
"""
