"""A crawler on timeoutq, small enough to read and real enough to use: `python -m demo`."""
