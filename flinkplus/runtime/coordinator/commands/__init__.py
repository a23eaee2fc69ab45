"""What a shell can have a running job do: report its status, inject a fault, move a subtask.

Ring 2. Process: driver. Thread: the coordinator's loop.
"""
