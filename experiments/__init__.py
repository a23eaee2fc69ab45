"""Workloads, fault injection, measurement, baselines and report. May import every other package."""
