"""Tests of the event log, the history and the failures by kind."""
