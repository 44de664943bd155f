"""The app of a project for `timeoutq worker --app timeoutq.django.worker:app`; to import it sets Django up."""

import os

import django
from django.utils.module_loading import autodiscover_modules

from timeoutq.django.backend import backend_of

django.setup()
autodiscover_modules("tasks")

app = backend_of(os.environ.get("TIMEOUTQ_DJANGO_BACKEND", "default")).app
"""The app of the backend that the environment names, or of the default one."""
