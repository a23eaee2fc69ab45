"""FlinkPlus beside Apache Flink and Spark Structured Streaming: the same jobs, on this machine, in one command.

Process: that of the command, which measures; each engine runs in processes of its own, which it starts and ends.
"""
