"""Tests of the core: scripts, verbs and client, on Valkey and Redis; one situation at a time."""
