"""The runtime: slots in Spark tasks, the coordinator in the driver, streams between them. A thin driver of
``protocol``.
"""
