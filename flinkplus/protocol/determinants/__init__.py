"""The logged choices that began a subtask's steps, and what other subtasks hold of them.

Ring 0: pure.
"""
