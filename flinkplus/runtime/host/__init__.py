"""What a process asks of its host: working directories, removal of files, priority of a thread, the C allocator.

Ring 2. Process: driver and slots. Thread: any.
"""
