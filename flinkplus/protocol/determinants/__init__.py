"""The logged choices that began a subtask's steps, and what other subtasks know of them.

Ring 0: pure. Process: slots, and the driver for promotions. Thread: the loops.
"""
