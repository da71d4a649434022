"""What the API makes of requests that are not what they should be, and who may make them."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from .refusals import refused
from .serving import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Client, SqsBroker, client, served


def ask(server: SqsBroker, action: str, body: bytes, **headers: str) -> httpx.Response:
    return httpx.post(server.url, content=body, headers={"X-Amz-Target": f"AmazonSQS.{action}", **headers})


@pytest.mark.parametrize(
    ("action", "body", "kind", "code"),
    [
        ("Explode", b"{}", "UnknownOperationException", "InvalidAction"),
        ("SendMessage", b"{", "SerializationException", "MalformedInput"),
        ("SendMessage", b"[]", "SerializationException", "MalformedInput"),
        ("SendMessage", b'{"QueueUrl": 7, "MessageBody": "x"}', "SerializationException", "MalformedInput"),
        ("SendMessage", b'{"QueueUrl": "/q"}', "MissingRequiredParameterException", "MissingParameter"),
        ("SendMessage", b"", "MissingRequiredParameterException", "MissingParameter"),
        (
            "SendMessage",
            b'{"QueueUrl": "", "MessageBody": "x"}',
            "MissingRequiredParameterException",
            "MissingParameter",
        ),
        (
            "SendMessage",
            b'{"QueueUrl": "/q", "MessageBody": "\\ud800"}',
            "SerializationException",
            "MalformedInput",
        ),
        (
            "SendMessage",
            b'{"QueueUrl": "/q", "MessageBody": "\xff"}',
            "SerializationException",
            "MalformedInput",
        ),
        ("SendMessage", b"[" * 100_000, "SerializationException", "MalformedInput"),
        (
            "SendMessageBatch",
            b'{"QueueUrl": "/q", "Entries": [{"Id": "a"}]}',
            "MissingRequiredParameterException",
            "MissingParameter",
        ),
        (
            "PurgeQueue",
            b'{"QueueUrl": "/none"}',
            "QueueDoesNotExist",
            "AWS.SimpleQueueService.NonExistentQueue",
        ),
    ],
)
def test_a_bad_request_is_named_in_both_vocabularies(
    server: SqsBroker, action: str, body: bytes, kind: str, code: str
) -> None:
    answer = ask(server, action, body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert answer.json()["__type"].endswith(f"#{kind}")
    assert answer.json()["message"]
    assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
    assert answer.headers["x-amzn-requestid"]


def test_an_action_without_a_result_has_an_empty_body(server: SqsBroker, queue: str) -> None:
    answer = ask(server, "PurgeQueue", b'{"QueueUrl": "%s"}' % queue.encode())
    assert (answer.status_code, answer.content) == (200, b"")


def test_an_internal_topic_is_no_queue(either: Client, queue: str) -> None:
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        either.get_queue_url(QueueName="__queue_state")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        either.send_message(QueueUrl=f"{queue.rpartition('/')[0]}/__consumer_offsets", MessageBody="x")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("guarded")
    with served(path, access_key_id=ACCESS_KEY_ID, secret_access_key=SECRET_ACCESS_KEY) as broker:
        yield broker


@pytest.mark.parametrize("protocol", ["json", "query"])
def test_signed_requests_are_accepted(guarded: SqsBroker, query_path: Path, protocol: str) -> None:
    sqs = client(guarded.url, data_path=query_path if protocol == "query" else None)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="ä & + %20")
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "ä & + %20"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


@pytest.mark.parametrize("protocol", ["json", "query"])
@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        ({"secret": "wrong"}, "SignatureDoesNotMatch"),
        ({"key": "AKIDOTHER"}, "InvalidClientTokenId"),
    ],
)
def test_unsigned_requests_are_refused(
    guarded: SqsBroker, query_path: Path, protocol: str, credentials: dict[str, str], code: str
) -> None:
    sqs = client(guarded.url, data_path=query_path if protocol == "query" else None, **credentials)
    with refused(code, status=403):
        sqs.list_queues()


def test_a_request_without_a_signature_is_refused(guarded: SqsBroker) -> None:
    answer = ask(guarded, "ListQueues", b"{}")
    assert answer.status_code == 403
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    assert httpx.get(f"{guarded.url}/?Action=ListQueues").status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Origin": "http://a.example"}, id="a form of another site"),
        pytest.param({"Origin": "null"}, id="a page in a frame without an origin"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, id="a link or a picture"),
    ],
)
def test_a_page_of_another_site_may_do_nothing(
    server: SqsBroker, queue: str, headers: dict[str, str]
) -> None:
    parameters = {"Action": "DeleteQueue", "QueueUrl": queue}
    for answer in (
        httpx.post(server.url, data=parameters, headers=headers),
        httpx.get(server.url, params=parameters, headers=headers),
    ):
        assert answer.status_code == 403
        assert "<Code>AccessDenied</Code>" in answer.text
    request = ask(server, "GetQueueAttributes", msgspec.json.encode({"QueueUrl": queue}), Origin=server.url)
    assert request.status_code == 200


JSON = {"Accept": "application/json, text/plain, */*"}


def query(server: SqsBroker, path: str, headers: dict[str, str], **fields: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", data=fields, headers=headers)


def test_the_query_protocol_answers_in_json_if_that_is_accepted(server: SqsBroker, queue: str) -> None:
    path = queue.removeprefix(server.url)
    attributes = {
        "MessageAttribute.1.Name": "n",
        "MessageAttribute.1.Value.DataType": "Number",
        "MessageAttribute.1.Value.StringValue": "7",
    }
    sent = query(server, path, JSON, Action="SendMessage", MessageBody="b", **attributes)
    assert sent.headers["content-type"] == "application/json"
    result = sent.json()["SendMessageResponse"]["SendMessageResult"]
    assert (result["MessageId"] != "", result["SequenceNumber"]) == (True, None)
    assert sent.json()["SendMessageResponse"]["ResponseMetadata"]["RequestId"]

    names = {"AttributeName.1": "SenderId", "MessageAttributeName.1": "All", "WaitTimeSeconds": "5"}
    received = query(server, path, JSON, Action="ReceiveMessage", **names).json()
    (message,) = received["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert (message["Body"], message["MessageId"]) == ("b", result["MessageId"])
    assert message["Attributes"] == [{"Name": "SenderId", "Value": "000000000000"}]
    (attribute,) = message["MessageAttributes"]
    assert (attribute["Name"], attribute["Value"]["StringValue"]) == ("n", "7")

    deleted = query(server, path, JSON, Action="DeleteMessage", ReceiptHandle=message["ReceiptHandle"]).json()
    assert list(deleted["DeleteMessageResponse"]) == ["ResponseMetadata"]
    listed = query(server, "/", JSON, Action="ListQueues", QueueNamePrefix="no such queue").json()
    assert listed["ListQueuesResponse"]["ListQueuesResult"] == {"queueUrls": None, "NextToken": None}
    listed = query(server, "/", JSON, Action="ListQueues", QueueNamePrefix=path.rpartition("/")[2]).json()
    assert listed["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"] == [queue]


@pytest.mark.parametrize("accept", ["*/*", "text/xml", "text/xml, application/json"])
def test_the_query_protocol_answers_in_xml_otherwise(server: SqsBroker, accept: str) -> None:
    answer = query(server, "/", {"Accept": accept}, Action="ListQueues")
    assert answer.headers["content-type"] == "text/xml"


def test_an_unknown_action_of_the_query_protocol_is_refused(server: SqsBroker, queue: str) -> None:
    path = queue.removeprefix(server.url)
    reason = "The action Explode is not valid for this endpoint."
    for each in ("/", path):
        answer = query(server, each, {}, Action="Explode")
        assert answer.status_code == 400
        assert f"<Code>InvalidAction</Code><Message>{reason}</Message>" in answer.text
        error = query(server, each, JSON, Action="Explode")
        assert (error.status_code, error.json()["Error"]["Code"]) == (400, "InvalidAction")
        assert (error.json()["Error"]["Message"], error.json()["Error"]["Type"]) == (reason, "Sender")
        assert error.json()["RequestId"]
        for headers in ({}, JSON):
            none = httpx.get(f"{server.url}{each}", headers=headers)
            assert (none.status_code, none.text) == (404, "<UnknownOperationException/>")


def test_the_trace_header_of_a_request_becomes_an_attribute_of_its_messages(
    sqs: Client, queue: str, server: SqsBroker
) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    given = "Root=1-5759e988-bd862e3fe1be46a994272794"

    def traced(value: str) -> Any:
        def add(request: Any, **_: Any) -> None:
            request.headers["X-Amzn-Trace-Id"] = value

        return add

    def attribute() -> str | None:
        answer = sqs.receive_message(
            QueueUrl=queue, MessageSystemAttributeNames=["AWSTraceHeader"], WaitTimeSeconds=5
        )
        (message,) = answer["Messages"]
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return dict(message.get("Attributes", {})).get("AWSTraceHeader")

    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": given}}
    for value, attributes, expected in (
        (trace, {}, trace),
        (trace, own, given),
        ("x" * 3000, {}, None),
    ):
        handler = traced(value)
        sqs.meta.events.register("before-send.sqs", handler)
        try:
            answer = sqs.send_message(QueueUrl=queue, MessageBody="b", MessageSystemAttributes=attributes)
            assert ("MD5OfMessageSystemAttributes" in answer) == bool(attributes)
            assert attribute() == expected
            sqs.send_message_batch(
                QueueUrl=queue,
                Entries=[{"Id": "a", "MessageBody": "b", "MessageSystemAttributes": attributes}],
            )
            assert attribute() == expected
        finally:
            sqs.meta.events.unregister("before-send.sqs", handler)
