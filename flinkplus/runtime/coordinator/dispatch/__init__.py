"""What the drivers of the three machines share: messages to slots, the table of slots, rejoining, ZooKeeper.

Ring 2. Process: driver. Thread: the coordinator's loop.
"""
