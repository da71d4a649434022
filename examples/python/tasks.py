"""A worker: `alpacamq worker tasks:app`."""

import logging
import os
from dataclasses import dataclass

import alpacamq

log = logging.getLogger("tasks")


@dataclass
class Mail:
    """The value of a message."""

    to: str
    subject: str


app = alpacamq.Worker(os.environ.get("ALPACAMQ_URL", "alpaca://localhost"))


@app.task("emails", group="mailer", concurrency=20, retries=5, timeout="30s")
async def send_mail(mail: Mail) -> None:
    if "@" not in mail.to:
        raise alpacamq.Reject(f"{mail.to!r} is not an address")
    log.info("to %s: %s", mail.to, mail.subject)
