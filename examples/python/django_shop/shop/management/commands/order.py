"""Places an order."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from shop.models import place_order


class Command(BaseCommand):
    """`manage.py order espresso`."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("item")

    def handle(self, *_: Any, **options: Any) -> None:
        self.stdout.write(f"order {place_order(options['item']).pk}")
