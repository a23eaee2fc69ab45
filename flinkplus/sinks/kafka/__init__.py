"""Rows of a stream as records of a topic of Kafka, exactly once; visible when their checkpoint is complete.

Ring 2. Process: slots turn rows into records and write them to files in the checkpoint directory (``records``), and
never connect to a broker; the driver produces them in transactions (``committer``). Thread: the slot's loop
(``settle``: its snapshot pool); in the driver one at a time. When a transaction is opened, written and given up is
decided in ``flinkplus.protocol.checkpoints.transactions``. Only ``client`` imports ``confluent_kafka``.
"""
