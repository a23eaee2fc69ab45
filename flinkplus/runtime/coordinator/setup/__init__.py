"""Configuration of a job's machines from its options and graph; where the job begins and how it ended.

Ring 2. Process: driver. Thread: the one that starts the job.
"""
