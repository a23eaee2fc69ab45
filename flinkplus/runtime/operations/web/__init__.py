"""The live page of a job: a small web server with the page, a REST interface and metrics for Prometheus.

Ring 2. Process: driver. Thread: its own, ``flinkplus-ui``; the status and commands pass through the coordinator's.
"""
