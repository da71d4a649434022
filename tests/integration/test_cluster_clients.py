"""Clients that know one node and retry, as the guide says, while that node restarts."""

import shutil
import subprocess
import threading
from collections.abc import Iterator

import boto3
import httpx
import pytest
from botocore.config import Config

from .nodes import Nodes, running_nodes

QUEUE = "parcels"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


def test_an_aws_client_with_retries_sees_no_error_while_its_node_restarts(nodes: Nodes) -> None:
    node = nodes.by_id[2]
    client = boto3.client(
        "sqs",
        endpoint_url=f"http://{node.sqs}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106
        config=Config(retries={"mode": "standard", "total_max_attempts": 10}),
    )
    url = client.create_queue(QueueName=QUEUE)["QueueUrl"]
    sent: list[str] = []
    errors: list[Exception] = []
    is_up_again = threading.Event()

    def send() -> None:
        try:
            while not is_up_again.is_set():
                body = str(len(sent))
                client.send_message(QueueUrl=url, MessageBody=body)
                sent.append(body)
        except Exception as error:  # noqa: BLE001 - given to the test
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        node.stop()
        node.start()
        node.wait_until_ready(2)
    finally:
        is_up_again.set()
        sender.join()
    assert not errors
    received: set[str] = set()
    while received < set(sent):
        found = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert found.get("Messages"), "all are there"
        received |= {message["Body"] for message in found["Messages"]}
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(found["Messages"])
        ]
        client.delete_message_batch(QueueUrl=url, Entries=entries)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_an_http_client_with_retries_waits_for_a_node_that_restarts(nodes: Nodes) -> None:
    node = nodes.by_id[3]
    assert httpx.post(f"http://{node.http}/topics/letters/messages", json={"value": "one"}).is_success
    node.stop()
    command = ["curl", "-sS", "--fail", "--retry", "10", "--retry-connrefused", "-d", '{"value": "two"}']
    with subprocess.Popen(
        [*command, f"http://{node.http}/topics/letters/messages"], stdout=subprocess.PIPE
    ) as client:
        node.start()
        output, _ = client.communicate(timeout=120)
    assert client.returncode == 0
    assert b'"topic":"letters"' in output
