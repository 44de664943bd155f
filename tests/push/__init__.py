"""Tests of the worker that posts tasks to a webhook."""
