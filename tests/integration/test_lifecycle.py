"""Start and stop: the ready line, clean shutdown, and clear start errors."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.client import Record
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker

from .raw import API_VERSIONS, connected


def test_the_ready_line_names_an_address_that_answers(new_broker: NewBroker) -> None:
    broker = new_broker().start()

    host, port = broker.host_and_port
    assert host == "127.0.0.1"
    assert port > 0
    with connected((host, port)) as connection:
        assert API_VERSIONS in connection.api_versions()


def test_the_suggested_command_works_as_printed(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    broker.output.wait_for("Ctrl-C stops it", within_s=10)
    commands = [line.strip() for line in broker.output.text().splitlines() if "alpacactl" in line]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    said = [
        subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for command in commands
    ]

    assert len(said) == 4
    assert said[1] == "hello\n"
    assert "greetings" in said[2]
    assert "hello" in said[3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_cleanly_and_the_next_start_scans_nothing(
    new_broker: NewBroker, number: signal.Signals
) -> None:
    broker = new_broker().start()
    client = Confluent(broker.address)
    client.create_topic("t", partitions=3)
    client.produce("t", [Record(value=b"kept", partition=2)])

    assert broker.signal(number) == 0

    broker.start()
    broker.errors.wait_for(r'"recovered".*"scanned_bytes": 0\b', within_s=10)
    assert [record.value for record in Confluent(broker.address).read("t", partition=2, count=1)] == [b"kept"]


def test_after_a_kill_the_next_start_scans_and_logs_it(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    client = Confluent(broker.address)
    client.create_topic("t")
    client.produce("t", [Record(value=b"kept")])
    broker.kill()

    broker.start()

    broker.errors.wait_for(r'"recovered".*"scanned_bytes": [1-9]', within_s=10)
    assert [record.value for record in Confluent(broker.address).read("t", count=1)] == [b"kept"]


def test_a_clean_stop_does_not_wait_for_connected_clients(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    with connected(broker.host_and_port) as connection:
        assert API_VERSIONS in connection.api_versions()

        broker.stop()

        assert connection.is_closed()


def test_a_second_broker_on_the_same_directory_is_refused(new_broker: NewBroker) -> None:
    first = new_broker("shared").start()
    second = new_broker("shared")

    second.spawn()

    assert second.exit_code() != 0
    assert str(first.data_dir) in second.errors.text()
    assert "Traceback" not in second.errors.text()
    with connected(first.host_and_port) as connection:
        assert API_VERSIONS in connection.api_versions()


def test_the_directory_lock_ends_with_a_killed_broker(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    broker.kill()

    broker.start()

    assert broker.is_running


def test_the_error_for_a_port_in_use_names_the_setting(new_broker: NewBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = new_broker(kafka=address)

        broker.spawn()

        assert broker.exit_code() != 0
    assert address in broker.errors.text()
    assert "kafka.listen" in broker.errors.text() or "--kafka" in broker.errors.text()
    assert "Traceback" not in broker.errors.text()


@pytest.mark.parametrize(
    ("config", "wrong", "right"),
    [
        pytest.param("[kafka]\nmax_conections = 5\n", "max_conections", "max_connections", id="an option"),
        pytest.param("[topic]\nauto_create = true\n", "topic", "topics", id="a section"),
        pytest.param(
            '[topics.defaults]\n"retention.mss" = 5\n', "retention.mss", "retention.ms", id="a topic default"
        ),
    ],
)
def test_the_error_for_a_misspelt_option_suggests_the_nearest_one(
    new_broker: NewBroker, config: str, wrong: str, right: str
) -> None:
    broker = new_broker(config=config)

    broker.spawn()

    assert broker.exit_code() != 0
    assert wrong in broker.errors.text()
    assert right in broker.errors.text()
    assert "Traceback" not in broker.errors.text()


def test_the_environment_overrides_the_file(new_broker: NewBroker) -> None:
    broker = new_broker(
        config="[topics]\ndefault_partitions = 2\n",
        environment={"ALPACAMQ_TOPICS_DEFAULT_PARTITIONS": "5"},
    ).start()

    client = Confluent(broker.address)
    client.create_topic("t", partitions=-1, replication=-1)

    assert client.partition_count("t") == 5


def test_topic_defaults_of_the_file_apply_to_topics_without_overrides(new_broker: NewBroker) -> None:
    broker = new_broker(config='[topics.defaults]\n"retention.ms" = 4000000\n').start()

    client = Confluent(broker.address)
    client.create_topic("default")
    client.create_topic("own", settings={"retention.ms": "5000000"})

    assert client.settings("default")["retention.ms"] == "4000000"
    assert client.settings("own")["retention.ms"] == "5000000"
