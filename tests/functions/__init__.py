"""Functions, as far as they need no server: signatures, payloads, ids, calls, apps, the timings of schedules, types."""
