"""How a shell finds a running job and commands it: access file, command server, commands.

Ring 2. Process: driver (server) and shells. Thread: the coordinator's loop.
"""
