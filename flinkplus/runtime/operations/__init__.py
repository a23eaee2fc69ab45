"""Commands of a shell to a running job: access file, command server, commands.

Ring 2. Process: driver (server) and shells. Thread: the coordinator's loop.
"""
