"""The functions and operators of expressions, by the names that SQL gives them.

Process: driver and slots. Thread: the user's, and the slot's loop.
"""
