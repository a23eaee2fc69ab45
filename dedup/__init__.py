"""Message-ID filter: Bloom filter in front, RocksDB behind, grouped by epoch. A leaf: imports nothing of flinkplus.

Holds no code yet: under rollback a message arrives once per generation, and the input cursors refuse everything else.
"""
