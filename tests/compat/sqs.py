"""boto3 as it comes, pointed at a broker."""

from typing import Any

import boto3
from botocore.config import Config

ACCESS_KEY_ID = "AKIDEXAMPLE"
SECRET_ACCESS_KEY = "an example of a secret"  # noqa: S105 - it opens nothing
REGION = "us-east-1"
READ_TIMEOUT_S = 30

# boto3 has no types of its own.
Sqs = Any
Message = dict[str, Any]


def client(address: str, *, secret: str = SECRET_ACCESS_KEY) -> Sqs:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{address}",
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=secret,
        config=Config(read_timeout=READ_TIMEOUT_S),
    )


def drain(sqs: Sqs, url: str, count: int, **options: Any) -> list[Message]:
    """So many messages, in as many receives as it takes."""
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
