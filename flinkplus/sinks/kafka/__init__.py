"""Rows of a stream as records of a topic of Kafka, exactly once; visible when their checkpoint is complete, or at once.

Ring 2. With the checkpoint: slots turn rows into records and write them to files in the checkpoint directory
(``records``), and never connect to a broker; the driver produces them in transactions (``committer``). Process: the
slot's, and the driver's. Thread: the slot's loop (``settle``: its snapshot pool); in the driver one at a time. When a
transaction is opened, written and given up is decided in ``flinkplus.protocol.checkpoints.transactions``.

At once (``at_once``): each subtask has a thread that produces its rows (``subtask``), with what makes them again in a
topic beside them (``recipe_topic``, ``recipe_records``); the driver fences the subtasks and reads that, in any of its
threads. What is opened, read and written is decided in ``flinkplus.protocol.checkpoints.subtask_output``.

Only ``cluster`` imports ``confluent_kafka``.
"""
