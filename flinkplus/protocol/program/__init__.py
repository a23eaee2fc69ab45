"""What a program is to its checkpoints: a description of its operators and their state, and the comparison of two.

Ring 0: pure. Process: driver. Thread: the one that starts the job.
"""
