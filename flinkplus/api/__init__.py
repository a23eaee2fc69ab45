"""What a program calls: ``StreamEnvironment``, streams, and the handle of a running job."""
