"""What Django asks of an entry of `INSTALLED_APPS`."""

from django.apps import AppConfig


class TimeoutqConfig(AppConfig):
    """`timeoutq.django` in `INSTALLED_APPS`."""

    name = "timeoutq.django"
    label = "timeoutq"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"
