"""A deterministic simulator of the whole protocol: one seed, one history.

The product's own code runs in it: the coordinator with its three machines and their drivers, each slot's orders and
failover, each subtask's steps, channels, determinants and output logs (spilling to a disk in memory), each slot's agent
of replication with its copies and frames. Time, network, disk, RocksDB, ZooKeeper, Spark and durable storage are
simulated. See ``docs/simulation.md``.
"""
