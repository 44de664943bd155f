"""One module for each command.

The modules, in reading order: each imports only from those above it.

    timeoutq_worker  `manage.py timeoutq_worker`: runs the tasks of a backend, with all options of `timeoutq worker`.
"""
