"""A model without a table, for the admin's list and permissions."""

from django.db import models


class Queue(models.Model):
    """The queues of all backends: who may view them, and who may change them."""

    class Meta:
        """No table, and two permissions."""

        managed = False
        default_permissions = ("view", "change")
        verbose_name_plural = "queues"
