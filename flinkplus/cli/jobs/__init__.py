"""Commands about running jobs: which there are, where their pages are, the end of one.

Ring 2. Process: a shell. Thread: its main thread.
"""
