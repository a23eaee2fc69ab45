"""Records of Kafka's topics as a stream, read exactly once.

Ring 2. Process: the driver resolves where to begin and to end (``planning``); each slot reads its partitions
(``reader``). Thread: the slot's loop, and one for each reader, which alone receives records and decodes them
(``fetching``). ``partitions``, ``buffers`` and ``planning`` are pure; here only ``client`` imports ``confluent_kafka``.
"""
