"""Rows of a stream in a table of PostgreSQL, exactly once; visible when their checkpoint is complete.

Ring 2. Process: slots write rows to files in the checkpoint directory, and never connect to the database; the driver
copies them into the table (``committer``). Thread: the slot's loop (``settle``: its snapshot pool); in the driver one
at a time. Only the driver needs ``psycopg``, and only the driver knows the password.
"""
