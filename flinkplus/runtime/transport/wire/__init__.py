"""The data plane's format: messages on channels, frames of several messages, frames on a stream of bytes.

Ring 2. Process: driver and slots. Thread: the loops.
"""
