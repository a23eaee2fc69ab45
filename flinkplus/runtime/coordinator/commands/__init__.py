"""Commands that a shell can send to a running job: report its status, inject a fault, move a subtask.

Ring 2. Process: driver. Thread: the coordinator's loop.
"""
