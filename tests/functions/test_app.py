"""Apps: functions by name, what a decorator refuses, calls on their way to a sender, and what a worker reads."""
