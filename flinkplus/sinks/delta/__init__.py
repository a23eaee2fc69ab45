"""Rows of a stream in a table of Delta Lake, exactly once; visible when their checkpoint is complete.

Ring 2. Process: slots write Parquet files below the table's directory; the driver adds them to the table
(``committer``). Thread: the slot's loop (``settle``: its snapshot pool); in the driver one at a time. Only the driver
needs ``deltalake``, and only for such a sink.
"""
