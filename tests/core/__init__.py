"""Tests of the core: scripts, verbs, client and links, on Valkey, Redis and fakeredis; one situation at a time."""
