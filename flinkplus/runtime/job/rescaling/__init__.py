"""A checkpoint made into one of another parallelism, before a resumed job starts.

Ring 2: reads and writes state files. Process: driver. Thread: the one that starts the job.
"""
