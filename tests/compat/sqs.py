"""An unmodified boto3 client for a broker."""

from typing import Any

import boto3
from botocore.config import Config

ACCESS_KEY_ID = "AKIDEXAMPLE"
SECRET_ACCESS_KEY = "an example of a secret"  # noqa: S105 - not a real secret
REGION = "us-east-1"
READ_TIMEOUT_S = 30

# boto3 has no type annotations.
Sqs = Any
Message = dict[str, Any]


def client(address: str, *, secret: str = SECRET_ACCESS_KEY, region: str = REGION) -> Sqs:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{address}",
        region_name=region,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=secret,
        config=Config(read_timeout=READ_TIMEOUT_S),
    )


def drain(sqs: Sqs, url: str, count: int, **options: Any) -> list[Message]:
    """Receive `count` messages, in as many receives as necessary."""
    messages: list[Message] = []
    while len(messages) < count:
        answer = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
            **options,
        )
        assert "Messages" in answer, f"{len(messages)} of {count} messages came"
        messages += answer["Messages"]
    return messages
