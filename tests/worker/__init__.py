"""Tests of workers: handlers, leases that are held, heartbeats, drains, and real worker processes."""
