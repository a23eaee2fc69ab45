"""What a program calls: ``StreamEnvironment``, streams, and the handle of a running job."""

from flinkplus.shadows import LIBRARIES, check_packages

check_packages(LIBRARIES)
