"""Exactly-once through any failover, for a job whose every record depends on the order of what came before."""
