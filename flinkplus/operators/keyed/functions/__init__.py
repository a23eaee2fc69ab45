"""What functions of ``process`` may use: named states, times to live, timers.

Process: slots. Thread: the slot's loop.
"""
