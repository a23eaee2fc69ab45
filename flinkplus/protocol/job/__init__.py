"""The life of a job, its rollbacks, its slots, and how often it may restart.

Ring 0: pure.
"""
