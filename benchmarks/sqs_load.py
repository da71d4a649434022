"""Consumers and producers that speak SQS in its JSON protocol."""

from itertools import count

import msgspec

from .dialogue import Dialogue, Turns, ask, http_request, together

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
        def create() -> Dialogue:
            answer = yield from ask(self._request("CreateQueue", {"QueueName": self._name}))
            self.url = msgspec.json.decode(answer)["QueueUrl"]

        together(self._address, [create()])

    def publish(self, turns: Turns, body: str, *, connections: int, batch: int) -> None:
        """Send requests with `batch` messages each, at most ten, one in flight on each connection."""
        if batch == 1:
            request = self._request("SendMessage", {"QueueUrl": self.url, "MessageBody": body})
        else:
            entries = [{"Id": str(number), "MessageBody": body} for number in range(batch)]
            request = self._request("SendMessageBatch", {"QueueUrl": self.url, "Entries": entries})

        def send() -> Dialogue:
            for _ in turns:
                answer = yield from ask(request)
                assert b'Failed":[{' not in answer, answer[:300]

        together(self._address, [send() for _ in range(connections)])

    def drain(self, messages: int, consumers: int) -> None:
        """Receive and delete exactly `messages`, ten at a time, by as many consumers at once."""
        left = messages
        whole = self._receive(BATCH)

        def consume() -> Dialogue:
            nonlocal left
            while left:
                # Reserved before they are received: else some would wait for what others have received.
                wanted = min(BATCH, left)
                left -= wanted
                answer = yield from ask(whole if wanted == BATCH else self._receive(wanted))
                received = _received.decode(answer).Messages
                left += wanted - len(received)
                if not received:
                    continue
                entries = [
                    {"Id": str(number), "ReceiptHandle": message.ReceiptHandle}
                    for number, message in zip(count(), received, strict=False)
                ]
                request = self._request("DeleteMessageBatch", {"QueueUrl": self.url, "Entries": entries})
                answer = yield from ask(request)
                assert b'Failed":[{' not in answer, answer[:300]

        together(self._address, [consume() for _ in range(consumers)])
        assert left == 0, f"{left} messages were not received"

    def _receive(self, wanted: int) -> bytes:
        return self._request(
            "ReceiveMessage", {"QueueUrl": self.url, "MaxNumberOfMessages": wanted, "WaitTimeSeconds": 1}
        )

    def _request(self, action: str, body: dict[str, object]) -> bytes:
        return http_request(_HEAD % (self._address.encode(), action.encode()), _encode(body))
