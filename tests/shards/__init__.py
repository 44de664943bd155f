"""Tests of queues over several shards, on one server and on a cluster."""
