"""Which slots to evict: hosts without a pulse, slots that do not reach each other.

Ring 0: pure. Process: driver. Thread: the coordinator's loop.
"""
