"""Both ends of a channel: the consumer's cursor and credit, the producer's log, watermarks.

Ring 0: pure. Process: slots. Thread: the slot's loop.
"""
