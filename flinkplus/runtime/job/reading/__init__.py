"""The state in a checkpoint directory as rows, without the program that wrote it.

Ring 2. Process: driver, shells and Spark's tasks. Thread: any.
"""
