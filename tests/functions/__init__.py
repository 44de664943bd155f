"""Calls of functions, and their schedules."""
