"""Orders."""

from django.db import models, transaction

from . import events


class Order(models.Model):
    """An order of a customer."""

    item = models.CharField(max_length=100)
    is_done = models.BooleanField(default=False)


def place_order(item: str) -> Order:
    """Store an order, and send an event once it is stored: an order that is rolled back has none."""
    with transaction.atomic():
        order = Order.objects.create(item=item)
        transaction.on_commit(lambda: events.orders.send({"id": order.pk}, key=order.pk))
    return order
