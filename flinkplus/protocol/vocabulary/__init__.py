"""What every machine shares: identifiers, messages, events, effects, limits, ancestry of subtasks.

Ring 0: pure.
"""
