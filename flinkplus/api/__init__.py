"""What a program calls: ``StreamEnvironment``, streams, and the handle of a running job.

Ring 2. Process: driver. Thread: the user's.
"""

from flinkplus.shadows import LIBRARIES, check_packages

check_packages(LIBRARIES)
