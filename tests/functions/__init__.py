"""Functions, as far as they need no server: signatures, payloads, ids, calls, apps, and what type checkers know."""
