"""The table."""

from django.db import models


class Order(models.Model):
    """An order, which a task marks as paid."""

    paid = models.BooleanField(default=False)

    class Meta:
        """The app's name."""

        app_label = "market"
