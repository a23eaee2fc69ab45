"""How the machines of a job are made from its options and graph, and how the job ended.

Ring 2. Process: driver. Thread: the one that starts the job.
"""
