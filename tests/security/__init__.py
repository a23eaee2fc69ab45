"""Attacks on a job, each of which must fail: ``make security-check``.

Each is a test that does what a stranger does, with sockets or files alone; ``strangers`` has what several of them need.
A test with the marker ``long`` is left out of ``make test``. ``model`` looks for attacks on the handshake by itself.
"""
