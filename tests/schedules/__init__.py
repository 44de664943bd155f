"""Schedules: lines of cron, timings, and the ticks that workers and cleaners put."""
