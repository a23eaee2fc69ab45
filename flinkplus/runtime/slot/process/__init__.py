"""The slot's process: its start below a Spark task, its main loop, its standby copies.

Ring 2. Process: slots, and the Spark task that keeps each of them. Thread: the main one, and that of the standbys.
"""
