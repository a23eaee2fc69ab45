"""When rows become visible to a reader of PostgreSQL, and how many a second: ``flinkplus experiment visibility``."""
