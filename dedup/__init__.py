"""Message-ID filter: Bloom filter in front, RocksDB behind, grouped by epoch. A leaf: imports nothing of flinkplus."""
