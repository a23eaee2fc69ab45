"""State that is read as data: restored for one reader, without loading the classes of its author.

Ring 2. Process: driver, shells and Spark's tasks. Thread: any, one for each reader.
"""
