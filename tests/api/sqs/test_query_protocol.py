"""The query protocol: form fields in, XML out."""

from contextlib import suppress
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.sqs import requests
from alpacamq.api.sqs.errors import INVALID_RECEIPT, Fault
from alpacamq.api.sqs.protocols import NAMESPACE, QueryProtocol
from alpacamq.api.sqs.requests import ActionRequest, AttributeValue
from alpacamq.api.sqs.results import (
    NOTHING,
    Action,
    Answer,
    Failure,
    ReceivedMessage,
    ReceiveMessageResult,
    SendMessageBatchResult,
)


async def never(*_: Any) -> Answer:
    raise AssertionError("only its name matters")


PROTOCOL = QueryProtocol(
    {
        name: Action(name, kind, never)
        for name, kind in vars(requests).items()
        if isinstance(kind, type) and issubclass(kind, ActionRequest)
    }
)


def request(fields: dict[str, str], path: str = "/", method: str = "POST") -> Request:
    form = urlencode(fields)
    query, body = (form, "") if method == "GET" else ("", form)
    return Request(method, path, query, {"host": "h"}, body.encode(), "127.0.0.1:1")


def read_request(fields: dict[str, str], path: str = "/", method: str = "POST") -> ActionRequest:
    return PROTOCOL.read(request(fields, path, method))[1]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_parameters_are_read_from_the_query_and_from_the_body(method: str) -> None:
    fields = {"Action": "SendMessage", "QueueUrl": "/0/q", "MessageBody": "a&b", "DelaySeconds": "5"}
    expected = requests.SendMessage(queue_url="/0/q", message_body="a&b", delay_seconds=5)
    assert read_request(fields, method=method) == expected


def test_the_queue_may_be_named_by_the_path_alone() -> None:
    assert read_request({"Action": "PurgeQueue"}, "/000000000000/q") == requests.PurgeQueue(
        queue_url="/000000000000/q"
    )


@pytest.mark.parametrize("url", [{}, {"QueueUrl": ""}], ids=["no QueueUrl", "an empty QueueUrl"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_action_on_the_path_of_a_queue_is_for_that_queue(method: str, url: dict[str, str]) -> None:
    fields = {"Action": "SendMessage", "MessageBody": "b", **url}
    expected = requests.SendMessage(queue_url="/0/q", message_body="b")
    assert read_request(fields, "/0/q", method) == expected


@pytest.mark.parametrize(
    ("action", "name", "field", "value"),
    [
        ("ReceiveMessage", "MessageAttributeNames", "message_attribute_names", []),
        ("ReceiveMessage", "MessageAttributeName", "message_attribute_names", []),
        ("ReceiveMessage", "AttributeNames", "attribute_names", []),
        ("ReceiveMessage", "MessageSystemAttributeNames", "message_system_attribute_names", []),
        ("GetQueueAttributes", "AttributeNames", "attribute_names", []),
        ("UntagQueue", "TagKeys", "tag_keys", []),
        ("TagQueue", "Tags", "tags", {}),
        ("TagQueue", "Tag", "tags", {}),
        ("SetQueueAttributes", "Attributes", "attributes", {}),
        ("DeleteMessageBatch", "Entries", "entries", []),
        ("DeleteMessageBatch", "DeleteMessageBatchRequestEntry", "entries", []),
    ],
)
def test_an_empty_field_is_an_empty_list_or_map(action: str, name: str, field: str, value: object) -> None:
    found = read_request({"Action": action, "QueueUrl": "/0/q", name: ""})
    assert getattr(found, field) == value


def test_numbered_fields_are_lists_in_the_order_of_their_numbers() -> None:
    fields = {
        "Action": "DeleteMessageBatch",
        "QueueUrl": "/0/q",
        **{f"DeleteMessageBatchRequestEntry.{number}.Id": f"id{number}" for number in (10, 2, 1)},
        **{f"DeleteMessageBatchRequestEntry.{number}.ReceiptHandle": "r" for number in (10, 2, 1)},
    }
    found = read_request(fields)
    assert isinstance(found, requests.DeleteMessageBatch)
    assert [entry.id for entry in found.entries] == ["id1", "id2", "id10"]


def test_maps_are_pairs_of_numbered_fields() -> None:
    fields = {
        "Action": "CreateQueue",
        "QueueName": "q",
        "Attribute.1.Name": "DelaySeconds",
        "Attribute.1.Value": "5",
        "Tag.1.Key": "team",
        "Tag.1.Value": "blue",
    }
    expected = requests.CreateQueue(queue_name="q", attributes={"DelaySeconds": "5"}, tags={"team": "blue"})
    assert read_request(fields) == expected


def test_attributes_within_a_batch_are_structures_within_structures() -> None:
    entry = "SendMessageBatchRequestEntry.1"
    fields = {
        "Action": "SendMessageBatch",
        "QueueUrl": "/0/q",
        f"{entry}.Id": "1",
        f"{entry}.MessageBody": "b",
        f"{entry}.MessageAttribute.1.Name": "photo",
        f"{entry}.MessageAttribute.1.Value.DataType": "Binary",
        f"{entry}.MessageAttribute.1.Value.BinaryValue": "AAE=",
    }
    found = read_request(fields)
    assert isinstance(found, requests.SendMessageBatch)
    assert found.entries[0].message_attributes == {
        "photo": AttributeValue(data_type="Binary", binary_value=b"\x00\x01")
    }


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "UnknownOperationException"),
        ({"Action": "Explode"}, "InvalidAction"),
        ({"Action.1": "ListQueues"}, "UnknownOperationException"),
        ({"Action": "PurgeQueue"}, "MissingParameter"),
        ({"Action": "ReceiveMessage", "QueueUrl": "/0/q", "WaitTimeSeconds": "soon"}, "MalformedInput"),
        ({"Action": "TagQueue", "QueueUrl": "/0/q", "Tag.1.Key": "a"}, "MissingParameter"),
        ({"Action": "TagQueue", "QueueUrl": "/0/q", "Tag.x.Key": "a"}, "MalformedInput"),
        ({"Action": "TagQueue", "QueueUrl": "/0/q", "Tag": "a"}, "MalformedInput"),
        ({"Action": "TagQueue", "QueueUrl": "/0/q", "Tag.1": "a", "Tag.1.Key": "b"}, "MalformedInput"),
        ({"Action": "ListQueues", "a.b.c.d.e.f.g": "deep"}, "MalformedInput"),
        ({"Action": "ListQueues", **{f"f{index}": "" for index in range(1001)}}, "MalformedInput"),
    ],
)
def test_malformed_requests_are_refused(fields: dict[str, str], code: str) -> None:
    with pytest.raises(Fault) as caught:
        read_request(fields)
    assert caught.value.kind.code == code


@given(
    st.dictionaries(st.text(".12aAZ", max_size=12), st.text(max_size=5), max_size=8), st.binary(max_size=30)
)
def test_no_fields_break_the_reader(fields: dict[str, str], body: bytes) -> None:
    sent = request({"Action": "TagQueue", **fields})
    for each in (sent, Request("POST", "/", sent.body.decode(), {}, body, "")):
        with suppress(Fault):
            PROTOCOL.read(each)


def parsed(answer: Response) -> ET.Element:
    return ET.fromstring(answer.body)  # noqa: S314 - we wrote it


XML_TEXT = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\ufffe\uffff")
    | st.sampled_from("\t\n\r")
)


@given(XML_TEXT, XML_TEXT)
def test_text_round_trips_through_xml(body: str, value: str) -> None:
    message = ReceivedMessage(
        message_id="m",
        receipt_handle="r",
        body=body,
        md5_of_body="d",
        attributes={"SenderId": value},
        message_attributes={"a": AttributeValue(data_type="Binary", binary_value=b"\x00")},
    )
    action = Action("ReceiveMessage", requests.ReceiveMessage, never)
    answer = PROTOCOL.answer(action, ReceiveMessageResult(messages=[message]), "id")
    root = parsed(answer)
    within = f"{{{NAMESPACE}}}"
    found = root.find(f"{within}ReceiveMessageResult/{within}Message")
    assert found is not None
    assert (found.findtext(f"{within}Body") or "") == body
    assert (found.findtext(f"{within}Attribute/{within}Value") or "") == value
    assert found.findtext(f"{within}MessageAttribute/{within}Value/{within}BinaryValue") == "AA=="


def test_an_action_without_a_result_answers_with_its_request_id() -> None:
    answer = PROTOCOL.answer(Action("PurgeQueue", requests.PurgeQueue, never), NOTHING, "id-1")
    root = parsed(answer)
    assert root.tag == f"{{{NAMESPACE}}}PurgeQueueResponse"
    assert root.findtext(f"{{{NAMESPACE}}}ResponseMetadata/{{{NAMESPACE}}}RequestId") == "id-1"


@given(st.text())
def test_a_refusal_is_xml_whatever_it_quotes(message: str) -> None:
    try:
        message.encode()
    except UnicodeEncodeError:
        return
    answer = PROTOCOL.refusal(Fault(INVALID_RECEIPT, message), "id")
    parsed(answer)


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_a_batch_of_which_one_entry_failed_is_xml_whatever_that_quotes(message: str) -> None:
    failed = Failure(id="a", sender_fault=True, code="InvalidParameterValue", message=message)
    action = Action("SendMessageBatch", requests.SendMessageBatch, never)
    parsed(PROTOCOL.answer(action, SendMessageBatchResult(failed=[failed]), "id"))
