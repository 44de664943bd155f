"""Tests of polite queues: hosts that take turns, blocks, bans, groups, and why a task waits."""
