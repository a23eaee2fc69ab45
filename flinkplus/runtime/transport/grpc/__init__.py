"""Control plane and data plane over gRPC, for ``transport="grpc"``.

Ring 2. Process: driver and slots. Thread: the gRPC thread (``base.io_thread``), which posts to the loops.
"""
