"""Operators: columnar from end to end; row functions are a convenience on top."""
