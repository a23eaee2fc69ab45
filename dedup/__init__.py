"""Message-ID filter: Bloom filter in front, RocksDB behind, grouped by epoch.

Ring 2: ``store`` writes files; the filter is pure. Imports nothing of the project. Process: slots. Thread: the slot's
loop.
"""
