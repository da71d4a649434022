"""No request, however odd, makes the API fail: it is done, or refused in words of SQS."""

import json
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from alpacamq.api.sqs import requests
from alpacamq.api.sqs.requests import ActionRequest

from .serving import Client, SqsBroker

PARTS = {
    "ActionRequest",
    "OfQueue",
    "Outgoing",
    "AttributeValue",
    "SendEntry",
    "DeleteEntry",
    "VisibilityEntry",
}
# Without DeleteQueue: all later requests would be refused for the same reason.
ACTIONS = sorted(
    {
        name
        for name, kind in vars(requests).items()
        if isinstance(kind, type) and issubclass(kind, ActionRequest)
    }
    - PARTS
    - {"DeleteQueue"}
)
WORDS = st.sampled_from(
    ["", "q", "q.fifo", "All", "*", "a b", "0", "-1", "9" * 20, "true", "{}", '{"Statement": 7}',
     '{"Statement": [7, {"Sid": "q"}]}', '{"redrivePermission": "byQueue", "sourceQueueArns": 3}',
     '{"deadLetterTargetArn": "arn:aws:sqs:::q", "maxReceiveCount": 2}', "arn:aws:sqs:a:b:q", "ARN", "URL",
     "eyJ0YXNrSWQiOiAxfQ==",
     "\x00", "\ufffe", "\U0001f4a9", "String", "Number", "Binary", "x" * 300,
     "RedrivePolicy", "RedriveAllowPolicy", "Policy", "VisibilityTimeout", "DelaySeconds", "FifoQueue"]
)  # fmt: skip
NUMBERS = st.sampled_from([0, 1, 10, -1, 11, 43200, 901, 2**31, 2**63, -(2**63)])


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of about the type a field has."""
    match kind:
        case msgspec.inspect.StructType():
            return shaped(kind.cls)
        case msgspec.inspect.ListType():
            return st.lists(of_type(kind.item_type), max_size=3)
        case msgspec.inspect.DictType():
            return st.dictionaries(WORDS, of_type(kind.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of([of_type(each) for each in kind.types])
        case msgspec.inspect.IntType():
            return NUMBERS
        case msgspec.inspect.NoneType():
            return st.none()
    return WORDS


def shaped(kind: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    required = {field.encode_name: of_type(field.type) for field in described.fields if field.required}
    optional = {field.encode_name: of_type(field.type) for field in described.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional)


@pytest.fixture(scope="module")
def knocking(server: SqsBroker, clients: dict[str, Client]) -> Any:
    url = clients["json"].create_queue(QueueName="q")["QueueUrl"]
    clients["json"].create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client, url


@pytest.mark.parametrize("action", ACTIONS)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_parameters_are_refused_in_words_of_sqs(
    knocking: tuple[httpx.Client, str], action: str, data: st.DataObject
) -> None:
    client, url = knocking
    request = data.draw(shaped(getattr(requests, action)))
    if "QueueUrl" in request:
        request["QueueUrl"] = data.draw(st.sampled_from([url, f"{url}.fifo", request["QueueUrl"]]))
    if request.get("WaitTimeSeconds", 0):
        request["WaitTimeSeconds"] = 0
    body = json.dumps(request).replace("ARN", "arn:aws:sqs:us-east-1:000000000000:q")
    answer = client.post("/", content=body, headers={"X-Amz-Target": f"AmazonSQS.{action}"})
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 200 or answer.headers["x-amzn-query-error"]
    flat = {
        "Action": action,
        **{name: value for name, value in request.items() if isinstance(value, str | int)},
    }
    answer = client.post("/", content=urlencode(flat, errors="replace"))
    assert answer.status_code < 500, answer.text
