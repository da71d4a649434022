"""A Celery application that uses our broker, as a process.

    BROKER_URL=sqs://key:secret@127.0.0.1:9324// celery -A tests.compat.celery_app worker

Tasks append a line for each run to the file JOURNAL.
"""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

QUEUE = os.environ.get("QUEUE", "celery")
JOURNAL = Path(os.environ.get("JOURNAL", os.devnull))
RETRY_S = 1

app = Celery("compat")
app.conf.update(
    broker_url=os.environ.get("BROKER_URL"),
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": 60,
        "wait_time_seconds": 2,
        "polling_interval": 0,
        **({"predefined_queues": {QUEUE: {"url": url}}} if (url := os.environ.get("QUEUE_URL")) else {}),
    },
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,  # not available with SQS
    worker_send_task_events=False,
    result_backend=None,
    broker_connection_retry_on_startup=True,
)


def note(*words: object) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(" ".join(map(str, words)) + "\n")


@app.task  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> None:
    note("add", left + right)


@app.task(bind=True, max_retries=2)  # type: ignore[untyped-decorator]
def stubborn(self: Any) -> None:
    """Succeed at the third attempt."""
    note("stubborn", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=RETRY_S)


@app.task  # type: ignore[untyped-decorator]
def when(asked_at: float) -> None:
    note("when", time.time() - asked_at)
