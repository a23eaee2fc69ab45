"""A deterministic simulator of the whole protocol: one seed, one history.

The product's own code runs in it: the coordinator with its three machines and their drivers, each slot's orders and
failover, each subtask's steps, channels, determinants and output logs (spilling to a disk in memory). Time, network,
disk, ZooKeeper, Spark, durable storage and the standbys' copies of state are simulated. See ``docs/simulation.md``.
"""
