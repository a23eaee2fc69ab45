"""Entry point of the ``flinkplus`` command, and of ``python -m flinkplus``."""

from __future__ import annotations

import sys

from flinkplus.errors import ShadowedPackage

EXIT_USAGE = 2


def main() -> int:
    """Run the command; returns the exit code."""
    try:
        from flinkplus.cli.main import main as command
    except ShadowedPackage as error:  # what the command imports first is what a module of the user's may hide
        print(f"flinkplus: {error}", file=sys.stderr)
        return EXIT_USAGE
    return command()


if __name__ == "__main__":
    sys.exit(main())
