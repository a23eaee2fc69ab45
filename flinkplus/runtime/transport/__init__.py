"""How messages travel: the ports that the loops see, and the choice of a transport behind them.

Ring 2. Process: driver and slots. Thread: the loops; gRPC has a thread of its own.
"""
