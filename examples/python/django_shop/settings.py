"""Settings of the project."""

import os
from pathlib import Path

INSTALLED_APPS = ["shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", Path(__file__).with_name("shop.sqlite3")),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALPACAMQ_URL = os.environ.get("ALPACAMQ_URL", "alpaca://localhost")
