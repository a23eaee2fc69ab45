"""Chain replication of subtasks: chains, membership in ZooKeeper, delta replication, standbys, promotion, handover.

Rings 0 (``failover``), 1 (``replication``), 2 (``zookeeper``, ``disk``). Process: driver and slots.
"""
