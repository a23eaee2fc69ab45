"""A slot: one process below one long-lived Spark task, which hosts subtasks and standbys.

Ring 1 and 2. Process: slots.
"""
