"""Tables of Delta Lake as outputs. Slots write Parquet files below the table's directory; the driver adds them to it.

``deltalake`` (the extra ``flinkplus[delta]``) is imported in the driver only, and only for such a sink.
"""
