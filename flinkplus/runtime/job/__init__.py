"""From a graph to a running job, and from a running job to nothing left behind.

Ring 2. Process: driver. Thread: the user's.
"""
