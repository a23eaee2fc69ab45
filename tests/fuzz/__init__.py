"""Fuzzing of everything that reads bytes which another process has written; see ``docs/security.md``."""
