"""Tests of the page in the browser, and its pictures."""
