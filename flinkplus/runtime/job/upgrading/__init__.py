"""A job that is resumed with another program: compared before anything changes, and its output taken over.

Ring 2: reads checkpoints, commits output. Process: driver. Thread: the one that starts the job.
"""
