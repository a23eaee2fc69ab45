"""Expressions on the columns of a batch: what users write, the types that it has, and its values.

Process: driver (text is parsed, types are checked) and slots (values). Thread: the user's, and the slot's loop.
"""
