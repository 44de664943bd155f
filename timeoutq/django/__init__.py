"""Django on timeoutq: a backend for `TASKS`, a worker command, and the queues in the admin (Django 6.0 or newer).

`TASKS = {"default": {"BACKEND": "timeoutq.django.Backend"}}` is all that a project needs; with `timeoutq.django` in
`INSTALLED_APPS` it has `manage.py timeoutq_worker`, too. Django calls this room; the core never does.

The modules, in reading order: each imports only from those above it.

    results     What a call of a Django task holds, and the `TaskResult` that is made of it.
    running     Runs a task in the worker: signals, its context, and the database connections of its thread.
    backend     The backend that a project names in `TASKS`.
    worker      The app of a project for `timeoutq worker --app timeoutq.django.worker:app`; to import it sets Django
                up.
    apps        What Django asks of an entry of `INSTALLED_APPS`.
    models      A model without a table, for the admin's list and permissions.
    admin       The queues in the admin: counts, states, retry, forget, why.
    management  Commands of `manage.py`.
"""

import sys

from timeoutq.words.errors import MissingExtra

if sys.version_info < (3, 12):
    raise MissingExtra(
        "timeoutq.django needs Django 6.0 or newer, and so Python 3.12 or newer: this is Python "
        f"{sys.version_info.major}.{sys.version_info.minor}; the other parts of timeoutq run here"
    )
try:
    from django import tasks as tasks  # Django 5 has none
except ImportError as error:
    raise MissingExtra("timeoutq.django needs Django 6.0 or newer: pip install 'timeoutq[django]'") from error

from timeoutq.django.backend import Backend

__all__ = ["Backend"]
