"""`alpacactl produce` and `alpacactl consume`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from tests.brokers import Broker
from tests.waiting import eventually

from .command import Command
from .terminals import Terminal

BINARY = bytes(byte for byte in range(256) if byte != ord("\n"))


def consumed(alpacactl: Command, topic: str, *options: str) -> list[bytes]:
    ran = alpacactl("consume", topic, "--exit", *options)
    assert ran.code == 0, ran.errors
    return ran.raw.splitlines()


def test_lines_become_records_in_order(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    written = alpacactl.json("produce", topic, stdin=b"one\n\nthree")
    assert written == {
        "topic": topic,
        "written": 3,
        "batches": [{"partition": 0, "first_offset": 0, "count": 3}],
    }
    assert alpacactl("consume", topic, "--exit").raw == b"one\n\nthree\n"


def test_binary_payloads_survive(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("produce", topic, "--key-separator", "::", stdin=b"\xff\x00::" + BINARY + b"\n")
    assert alpacactl("consume", topic, "--exit", "--delimiter", "").raw == BINARY
    assert alpacactl("consume", topic, "--exit", "--key-separator", "=").raw == b"\xff\x00=" + BINARY + b"\n"
    [record] = [json.loads(line) for line in consumed(alpacactl, topic, "-o", "json")]
    assert record["key_base64"] == "/wA="
    assert "value" not in record


def test_record_contents_cannot_control_the_terminal(alpacactl: Command, broker: Broker, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok(
        "produce", topic, "--key-separator", "::", stdin="\x1b[2J::é\x9b31m\x1b]0;mine\x07".encode() + b"\xff"
    )
    command = [sys.executable, "-m", "alpacamq.cli.main", "consume", topic, "--exit", "--key-separator", "="]
    with Terminal(command, {**os.environ, "ALPACACTL_BROKER": broker.address}) as terminal:
        assert terminal.ended() == 0
    assert terminal.raw.decode() == "\\u001b[2J=é\\u009b31m\\u001b]0;mine\\u0007\\xff\r\n"


def test_json_shows_all_of_a_record(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    headers = ["--header", "unit=°C", "--header", "a="]
    alpacactl.ok("produce", topic, "--key-separator", ":", *headers, stdin="k:wärme: 3\n".encode())
    [record] = [json.loads(line) for line in consumed(alpacactl, topic, "-o", "json")]
    assert (record["topic"], record["partition"], record["offset"]) == (topic, 0, 0)
    assert (record["key"], record["value"]) == ("k", "wärme: 3")
    assert record["headers"] == [{"name": "unit", "value": "°C"}, {"name": "a", "value": ""}]
    assert record["time"].endswith("+00:00")


def test_keys_map_to_the_same_partitions_as_in_other_clients(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "5")
    keys = [f"key-{number}" for number in range(20)]
    alpacactl.ok(
        "produce", topic, "--key-separator", ":", stdin="".join(f"{key}:ours\n" for key in keys).encode()
    )
    producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, key=key, value="theirs")
    producer.flush()
    places: dict[str, set[int]] = {}
    for line in consumed(alpacactl, topic, "-o", "json"):
        record = json.loads(line)
        places.setdefault(record["key"], set()).add(record["partition"])
    assert places.keys() == set(keys)
    assert all(len(partitions) == 1 for partitions in places.values())


def test_all_records_have_the_record_key(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    alpacactl.ok("produce", topic, "--record-key", "alice", stdin=b"tea\ncake\n")
    assert alpacactl("consume", topic, "--exit", "--key-separator", "=").raw == b"alice=tea\nalice=cake\n"


def test_a_record_key_is_not_the_key_of_a_certificate(alpacactl: Command, topic: str) -> None:
    errors = alpacactl.fails(2, "produce", topic, "--key", "alice")
    assert "private key of a certificate, not a record's key" in errors
    alpacactl.fails(2, "produce", topic, "--record-key", "alice", "--key-separator", ":")


def test_a_line_without_a_key_fails_but_lines_before_it_are_written(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    ran = alpacactl("produce", topic, "--key-separator", ":", stdin=b"a:1\nnothing\nb:2\n")
    assert ran.code == 1
    assert "line 2 does not contain the key separator ':'; line 1 was written" in ran.errors
    assert "wrote 1 record" in ran.errors
    assert consumed(alpacactl, topic) == [b"1"]


def test_produce_reads_what_consume_prints_as_json(ctl: Command, topic: str) -> None:
    copy = f"{topic}-copy"
    for name in (topic, copy):
        ctl.ok("topics", "create", name, "--partitions", "1")
    ctl.ok("produce", topic, "--key-separator", ":", "--header", "a=b", stdin=b"k:v\n\xff:\xfe\n")
    ctl.ok("produce", topic, "--json", stdin=b'{"key": "deleted", "value": null}\n')
    printed = ctl.ok("consume", topic, "--exit", "-o", "json")
    ctl.ok("produce", copy, "--json", stdin=printed.encode())
    place = ("topic", "timestamp_ms", "time")
    first, second = (
        [
            {name: value for name, value in record.items() if name not in place}
            for record in ctl.lines("consume", of, "--exit")
        ]
        for of in (topic, copy)
    )
    assert first == second
    assert len(second) == 3


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"tea", id="no JSON"),
        pytest.param(b"[1]", id="no object"),
        pytest.param(b'{"key": "k"}', id="no value"),
        pytest.param(b'{"value_base64": "?"}', id="no base64"),
        pytest.param(b'{"value": "v", "headers": [1]}', id="no header"),
        pytest.param(b"[" * 100_000, id="deep nesting"),
    ],
)
def test_an_invalid_line_of_json_is_named_with_the_lines_that_were_written(
    ctl: Command, topic: str, line: bytes
) -> None:
    ctl.ok("topics", "create", topic)
    ran = ctl("produce", topic, "--json", stdin=b'{"value": "1"}\n{"value": {"a": 2}}\n' + line)
    assert ran.code == 1
    assert "line 3 is not a record in JSON" in ran.errors
    assert "lines 1 to 2 were written" in ran.errors
    assert sorted(consumed(ctl, topic)) == [b"1", b'{"a":2}']


def test_many_records_are_read_once_each(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "3")
    lines = [b"%d" % number for number in range(5000)]
    alpacactl.ok("produce", topic, stdin=b"\n".join(lines))
    assert sorted(consumed(alpacactl, topic)) == sorted(lines)
    ends = [each["end"] for each in alpacactl.json("topics", "describe", topic)["partitions"]]
    assert all(ends), "records without a key are spread"


def test_a_record_that_fits_a_batch_of_its_own_is_written(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    lines = [b"a" * 400_000, b"b" * 900_000, b"c" * 400_000]
    alpacactl.ok("produce", topic, stdin=b"\n".join(lines))
    assert consumed(alpacactl, topic) == lines


def test_a_record_too_large_is_rejected_with_the_brokers_message(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--set", "max.message.bytes=1000")
    ran = alpacactl("produce", topic, stdin=b"x" * 2000)
    assert ran.code == 1
    assert "MESSAGE_TOO_LARGE" in ran.errors


def test_consuming_starts_and_stops_at_the_given_positions(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "2")
    alpacactl.ok("produce", topic, "--partition", "1", stdin=b"0\n1\n2\n3\n")
    assert consumed(alpacactl, topic, "--from", "2") == [b"2", b"3"]
    assert consumed(alpacactl, topic, "--from", "latest") == []
    assert consumed(alpacactl, topic, "--from", "1h", "--max", "1") == [b"0"]
    assert consumed(alpacactl, topic, "--from", "2199-01-01T00:00:00Z") == []
    assert consumed(alpacactl, topic, "--partition", "0") == []
    assert consumed(alpacactl, topic, "--partition", "1", "--max", "2") == [b"0", b"1"]


def test_a_partition_that_does_not_exist_is_not_found(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    assert alpacactl("consume", topic, "--partition", "3").code == 4
    assert alpacactl("produce", topic, "--partition", "3", stdin=b"x").code == 4


def test_consume_waits_for_records_and_produce_sends_lines_as_they_arrive(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address]
    consume = ["consume", topic, "--max", "1", "--from", "earliest"]
    produce = ["produce", topic]
    with (
        subprocess.Popen([*command, *consume], stdout=subprocess.PIPE) as consumer,
        subprocess.Popen([*command, *produce], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as producer,
    ):
        assert producer.stdin is not None
        producer.stdin.write(b"now\n")
        producer.stdin.flush()
        # Standard input stays open: the record must not wait for its end.
        assert consumer.communicate(timeout=60)[0] == b"now\n"
        producer.stdin.close()
        assert producer.wait(60) == 0


def test_consume_prints_what_matches_a_filter(ctl: Command, topic: str) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    lines = b"".join(b'alice:{"total": %d}\n' % total for total in (5, 150, 300)) + b'bob:{"total": 400}\n'
    ctl.ok("produce", topic, "--key-separator", ":", stdin=lines)
    wanted = ("--filter", 'value.total > 100 and key == "alice"')
    assert consumed(ctl, topic, *wanted) == [b'{"total": 150}', b'{"total": 300}']
    assert consumed(ctl, topic, *wanted, "--max", "1") == [b'{"total": 150}']
    assert "character 12: expected" in ctl.fails(2, "consume", topic, "--filter", "value.a == ")


def test_consume_waits_on_an_idle_topic_until_it_is_interrupted(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "consume", topic]

    def fetches() -> int:
        text = httpx.get(f"http://{broker.http_address}/metrics").raise_for_status().text
        found = re.search(r"^alpacamq_kafka_request_seconds_count\{api=\"Fetch\"\} (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    before = fetches()
    with Terminal(command, os.environ) as consume:
        eventually(lambda: fetches() >= before + 5)
        assert consume.process.poll() is None
        alpacactl.ok("produce", topic, stdin=b"at last\n")
        consume.wait_for("at last")
        consume.press("\x03")
        assert consume.ended() == 130
        assert "Traceback" not in consume.text


def test_a_broken_pipe_ends_the_command_quietly(alpacactl: Command, broker: Broker, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("produce", topic, stdin=b"x" * 1000 + b"\n" + b"y\n" * 100_000)
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "consume", topic, "--exit"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_only_committed_transactions_are_read_by_default(
    alpacactl: Command, broker: Broker, topic: str, compression: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": topic, "compression.type": compression}
    )
    producer.init_transactions(30)
    for outcome in ("aborted", "committed", "open"):
        producer.begin_transaction()
        producer.produce(topic, value=outcome)
        producer.flush()
        if outcome == "aborted":
            producer.abort_transaction(30)
        elif outcome == "committed":
            producer.commit_transaction(30)
    everything = [b"aborted", b"committed", b"open"]
    assert consumed(alpacactl, topic, "--isolation", "uncommitted") == everything
    assert consumed(alpacactl, topic) == [b"committed"]
    producer.abort_transaction(30)
    eventually(lambda: alpacactl.json("transactions", "describe", topic)["state"] == "CompleteAbort")
    assert consumed(alpacactl, topic) == [b"committed"]


def test_lines_are_read_from_a_file(ctl: Command, topic: str, tmp_path: Path) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    file = tmp_path / "lines"
    file.write_bytes(b"a\n\xff\nlast")
    ctl.ok("produce", topic, "--file", str(file))
    assert ctl("consume", topic, "--exit").raw == b"a\n\xff\nlast\n"
    assert "there is no file" in ctl.fails(4, "produce", topic, "--file", str(tmp_path / "none"))
    assert "directory" in ctl.fails(1, "produce", topic, "--file", str(tmp_path))


def test_long_operations_show_progress_on_a_terminal(
    ctl: Command, broker: Broker, topic: str, tmp_path: Path
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 99 + b"\n")
    with file.open("ab") as lines:
        lines.writelines(b"y" * 99 + b"\n" for _ in range(100_000))
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "produce", topic]
    with Terminal([*command, "--file", str(file)], os.environ) as producer:
        producer.wait_for(r"\[[#.]+\] +\d+%  [\d.]+ [KM]iB, .*/s, \d+ s left")
        assert producer.ended() == 0
        assert producer.text.endswith(f"wrote 100001 records to {topic}\r\n")
