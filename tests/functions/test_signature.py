"""Signatures: which arguments a function takes, as JSON and back."""
