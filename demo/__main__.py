"""`python -m demo`: runs `command.py`, or says what has to be installed first."""

from __future__ import annotations

import sys
from importlib import import_module

NEEDED = ("httpcore", "httpx", "idna", "protego", "selectolax", "w3lib")


def missing() -> list[str]:
    """Give the packages that the demo needs and that are not here."""
    found: list[str] = []
    for name in NEEDED:
        try:
            import_module(name)
        except ModuleNotFoundError:
            found.append(name)
    return found


def main() -> None:
    """Run the demo."""
    if lacking := missing():
        print(f"demo: {', '.join(lacking)} is not installed: pip install 'timeoutq[demo]'", file=sys.stderr)
        sys.exit(2)
    import_module("demo.command").start()


if __name__ == "__main__":
    main()
