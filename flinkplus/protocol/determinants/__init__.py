"""The logged choices that began a subtask's steps, and what other subtasks know of them.

Ring 0: pure.
"""
