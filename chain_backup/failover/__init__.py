"""Local failover, decided: chains, recovery line, promotion, planned moves, where standbys go.

Ring 0: pure. Process: driver. Thread: the coordinator's loop.
"""
