"""Tests of the demo: its site, its crawler, its many hosts, and docker-compose.yml."""
