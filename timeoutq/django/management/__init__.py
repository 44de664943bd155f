"""Commands of `manage.py`.

The modules, in reading order: each imports only from those above it.

    commands  One module for each command.
"""
