"""The runtime: slots in Spark tasks, the coordinator in the driver, streams between them.

Ring 1 and 2. Process: driver and slots. It drives the machines of ``flinkplus.protocol`` and
``chain_backup.failover``. Each folder says its own ring, process and thread.
"""
