"""The runtime: slots in Spark tasks, the coordinator in the driver, gRPC between them. A thin driver of
``protocol``.
"""
