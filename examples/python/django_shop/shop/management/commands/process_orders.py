"""Processes orders until it is stopped."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from shop import events
from shop.models import Order


class Command(BaseCommand):
    """`manage.py process_orders`; any number of them share the work."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="end after one order")

    def handle(self, *_: Any, **options: Any) -> None:
        with events.orders.queue("shop").receive(credit=10) as jobs:
            for job in jobs:
                # The database commits before the message is acknowledged, and the update may be repeated.
                with job, transaction.atomic():
                    Order.objects.filter(pk=job.value["id"]).update(is_done=True)
                self.stdout.write(f"done {job.value['id']}")
                if options["once"]:
                    break
