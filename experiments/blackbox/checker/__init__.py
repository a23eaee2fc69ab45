"""Watches the output of a job while it runs, and says what is wrong with it.

Rule: nothing here imports anything of the project, so that no mistake of the product is repeated in its check. It runs
as a program of its own (``python -m checker``, see ``__main__``).
"""
