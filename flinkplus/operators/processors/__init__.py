"""PySpark's interface of arbitrary state: its ``StatefulProcessor`` as an operator.

Process: driver (descriptors) and slots (instances). Thread: the slot's loop.
"""
