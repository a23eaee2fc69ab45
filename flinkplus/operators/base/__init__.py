"""The contract of operators, and what they are made of: columns, keys, schema, values.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
