"""Tests of the core: scripts, verbs and client, on Valkey, Redis and fakeredis; one situation at a time."""
