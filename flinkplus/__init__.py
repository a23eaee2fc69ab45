"""FlinkPlus: fast failover for stateful streaming, in Python, on Spark."""
