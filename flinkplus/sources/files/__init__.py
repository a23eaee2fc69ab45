"""Files of a directory, read while they appear.

Ring 2: lists directories, reads and removes files; ``backlog``, ``choices`` and ``position`` are pure. Process: driver
(descriptor) and slots (readers). Threads: the slot's loop; for each reader one that lists and one that decodes.
"""
