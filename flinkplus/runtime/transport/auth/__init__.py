"""Who may connect: a job's credentials, the handshake by which two processes prove them, TLS.

Ring 2. Process: driver and slots. Thread: the loops.
"""
