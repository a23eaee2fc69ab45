"""Starts, resumes and ends jobs: plan, checks, slots as Spark jobs, clean-up.

Ring 2. Process: driver. Thread: the user's.
"""
