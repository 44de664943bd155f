"""Functions: a call is a task."""
