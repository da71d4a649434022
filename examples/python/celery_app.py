"""Celery over the SQS API: tasks are messages of the topic `celery`, and failures become dead letters.

SQS=localhost:9324 celery -A celery_app worker --without-gossip --without-mingle
"""

import os
from pathlib import Path

from celery import Celery

app = Celery("shop", broker=f"sqs://any:any@{os.environ.get('SQS', 'localhost:9324')}//")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": 60,
        "wait_time_seconds": 10,
        "polling_interval": 0,
    },
    # Acknowledge after the task: one that dies with its worker is delivered again.
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,  # SQS has none
    broker_connection_retry_on_startup=True,
)


@app.task(autoretry_for=(OSError,), retry_backoff=True, max_retries=5)
def brew(item: str) -> None:
    with Path(os.environ.get("JOURNAL", "drinks.txt")).open("a") as journal:
        journal.write(f"{item}\n")
