"""Metrics of a running job, and warnings of late rows.

Ring 2. Process: driver. Thread: the coordinator's loop; readers in any.
"""
