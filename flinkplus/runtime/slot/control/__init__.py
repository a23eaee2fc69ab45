"""What a slot does about its coordinator's orders: deploy, fence, promote, reconnect; which peers it reaches.

Ring 1: no socket, file or clock of its own, so that the simulator runs it unchanged. Process: slots. Thread: the
slot's loop.
"""
