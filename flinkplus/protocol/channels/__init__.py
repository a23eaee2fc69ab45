"""Both ends of a channel: cursor and credit of the consumer, log of the producer, watermarks.

Ring 0: pure.
"""
