"""Python data sources of Spark (``pyspark.sql.datasource``), read by the slots; and lines of a TCP server.

Ring 2: calls users' code, connects; ``choices`` and ``position`` are pure. Process: driver (descriptors) and slots
(readers). Threads: the slot's loop; for each reader one that calls the data source or receives.
"""
