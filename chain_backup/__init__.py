"""Chain replication of subtasks: chains, membership in ZooKeeper, delta replication, standbys, promotion, handover.

Holds no code yet: jobs recover by rollback. The package marks where this layer stands, between the runtime above it and
the state below it, so that the import rule covers it from the start.
"""
