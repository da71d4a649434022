"""Consumers and producers that speak SQS in its JSON protocol."""

from itertools import count
from typing import Any

import msgspec

from .http_client import HttpClient, together

BATCH = 10
_HEAD = (
    b"POST / HTTP/1.1\r\nHost: %b\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"X-Amz-Target: AmazonSQS.%b\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=host, Signature=x"
)
_encode = msgspec.json.encode


class _Message(msgspec.Struct):
    ReceiptHandle: str


class _Received(msgspec.Struct):
    Messages: list[_Message] = []


_received = msgspec.json.Decoder(_Received)


class SqsQueue:
    """One queue on one server."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name
        self.url = ""

    def create(self) -> None:
        async def ask(client: HttpClient) -> None:
            answer = await client.ask(self._head("CreateQueue"), _encode({"QueueName": self._name}))
            self.url = msgspec.json.decode(answer)["QueueUrl"]

        together(self._address, [ask])

    def fill(self, messages: int, body: str, connections: int) -> None:
        """Send `messages`, ten at a time."""
        entries = [{"Id": str(number), "MessageBody": body} for number in range(BATCH)]
        request = _encode({"QueueUrl": self.url, "Entries": entries})
        head = self._head("SendMessageBatch")
        turns = iter(range(messages // BATCH))

        async def send(client: HttpClient) -> None:
            for _ in turns:
                answer = await client.ask(head, request)
                assert b'Failed":[{' not in answer, answer[:300]

        together(self._address, [send] * connections)

    def drain(self, messages: int, consumers: int) -> None:
        """Receive and delete exactly `messages`, ten at a time, by as many consumers at once."""
        receive = _encode({"QueueUrl": self.url, "MaxNumberOfMessages": BATCH, "WaitTimeSeconds": 1})
        receive_head = self._head("ReceiveMessage")
        delete_head = self._head("DeleteMessageBatch")
        left = messages

        async def consume(client: HttpClient) -> None:
            nonlocal left
            while left > 0:
                received = _received.decode(await client.ask(receive_head, receive)).Messages
                if not received:
                    continue
                left -= len(received)
                request: dict[str, Any] = {
                    "QueueUrl": self.url,
                    "Entries": [
                        {"Id": str(number), "ReceiptHandle": message.ReceiptHandle}
                        for number, message in zip(count(), received, strict=False)
                    ],
                }
                await client.ask(delete_head, _encode(request))

        together(self._address, [consume] * consumers)
        assert left == 0, f"{-left} messages more than were sent"

    def _head(self, action: str) -> bytes:
        return _HEAD % (self._address.encode(), action.encode())
