"""Sources: bounded or unbounded inputs that can be read again from a recorded position."""
