"""Jobs to read, run and begin from: ``flinkplus example components|pagerank``.

Each module is one job over the public API, with the plain sequential computation that its result must equal.

Ring 2. Process: driver; functions of operators: slots. Thread: the user's; the slot's loop.
"""
