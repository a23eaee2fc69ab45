"""Chain replication of subtasks: chains, membership in ZooKeeper, delta replication, standbys, promotion, handover."""
