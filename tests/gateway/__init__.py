"""Tests of the API over HTTP, tokens, metrics and health."""
