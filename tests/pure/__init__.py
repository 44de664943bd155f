"""Tests without a server: decisions, tables, words, parsing, and the layout of the package."""
