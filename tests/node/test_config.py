"""Loading of the configuration, and errors of invalid ones."""

from pathlib import Path

import pytest

from alpacamq.node.config import LISTENERS, OPTIONS, Address, ConfigError, KafkaConfig, NodeConfig, load
from alpacamq.node.listeners import ListenerApi, ListenerConfig
from alpacamq.node.options import Option, options_of, variable_of
from alpacamq.telemetry import Format, Level


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "alpacamq.toml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(written(tmp_path, text), {}, {})
    return str(refused.value)


def test_no_configuration_gives_the_defaults() -> None:
    assert load(None, {}, {}) == NodeConfig()


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, ""), {}, {}) == NodeConfig()


def test_every_kind_of_value_is_read_from_a_file(tmp_path: Path) -> None:
    config = load(
        written(
            tmp_path,
            """
            [node]
            id = 7
            data_dir = "/var/lib/alpacamq"
            [kafka]
            listen = "[::]:9093"
            advertised = "broker.example.com:9092"
            [security]
            authentication = true
            [topics]
            auto_create = false
            [logging]
            level = "debug"
            format = "json"
            """,
        ),
        {},
        {},
    )
    assert config.node.id == 7
    assert config.node.data_dir == Path("/var/lib/alpacamq")
    assert config.kafka.listen == Address("::", 9093)
    assert config.kafka.advertised == Address("broker.example.com", 9092)
    assert config.topics.auto_create is False
    assert (config.logging.level, config.logging.format) == (Level.DEBUG, Format.JSON)


def test_the_environment_overrides_the_file_and_the_command_line_both(tmp_path: Path) -> None:
    path = written(tmp_path, "[kafka]\nmax_connections = 1\nidle_timeout_ms = 1\nframe_timeout_ms = 1")
    environ = {"ALPACAMQ_KAFKA_IDLE_TIMEOUT_MS": "2", "ALPACAMQ_KAFKA_FRAME_TIMEOUT_MS": "2"}
    kafka = load(path, environ, {"kafka.frame_timeout_ms": "3"}).kafka
    assert (kafka.max_connections, kafka.idle_timeout_ms, kafka.frame_timeout_ms) == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("false", False), ("1", True), ("0", False), ("False", False)]
)
def test_booleans_in_the_environment_are_words_or_digits(text: str, expected: bool) -> None:
    assert load(None, {"ALPACAMQ_TOPICS_AUTO_CREATE": text}, {}).topics.auto_create is expected


def test_every_option_has_its_own_variable() -> None:
    assert len({variable_of(key) for key in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("key", [key for key in OPTIONS if not key.startswith(LISTENERS)])
def test_every_option_accepts_its_default_from_every_source(tmp_path: Path, key: str) -> None:
    option = OPTIONS[key]
    text = option.default_text if isinstance(option, Option) else option.setting.text(option.setting.default)
    quoted = f'"{text}"' if not isinstance(option, Option) or option.type not in {int, bool} else text
    from_file = load(written(tmp_path, f"{key} = {quoted}"), {}, {})
    assert load(None, {variable_of(key): text}, {}) == from_file
    assert load(None, {}, {key: text}) == from_file
    if isinstance(option, Option):
        assert from_file == NodeConfig()


@pytest.mark.parametrize("option", list(options_of(LISTENERS, ListenerConfig)), ids=lambda each: each.key)
def test_every_option_of_a_listener_accepts_its_default_from_every_source(
    tmp_path: Path, option: Option
) -> None:
    listen = "listeners.external_1.listen"
    key, text = option.key.replace("NAME", "external_1"), option.default_text
    if key == listen:
        text = "127.0.0.1:9094"
    quoted = text if option.type is bool else f'"{text}"'
    lines = {listen: '"127.0.0.1:9094"', key: quoted}
    from_file = load(
        written(tmp_path, "\n".join(f"{name} = {value}" for name, value in lines.items())), {}, {}
    )
    given = {listen: "127.0.0.1:9094", key: text}
    assert load(None, {variable_of(name): value for name, value in given.items()}, {}) == from_file
    assert load(None, {}, given) == from_file
    assert from_file.listeners == {"external_1": ListenerConfig(listen=Address("127.0.0.1", 9094))}


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if isinstance(option, Option)])
def test_every_option_has_a_description(key: str) -> None:
    option = OPTIONS[key]
    assert isinstance(option, Option)
    assert option.doc.endswith(".")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('kafka.listn = "a:1"', "kafka.listn; did you mean kafka.listen?", id="misspelt key"),
        pytest.param(
            'kafak.listen = "a:1"', "kafak.listen; did you mean kafka.listen?", id="misspelt section"
        ),
        pytest.param(
            "default_partitions = 1",
            "default_partitions; did you mean topics.default_partitions?",
            id="key without its section",
        ),
        pytest.param("zzz = 1", "unknown option zzz", id="nothing near"),
        pytest.param("[zzz]", "unknown option zzz", id="empty unknown section"),
        pytest.param(
            "topics.defaults.retenton.ms = 5",
            "topics.defaults.retenton.ms; did you mean topics.defaults.retention.ms?",
            id="misspelt topic setting",
        ),
    ],
)
def test_an_unknown_key_is_rejected_with_a_suggestion(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("kafka.max_connections = '5'", "kafka.max_connections must be an integer", id="text"),
        pytest.param("kafka.max_connections = true", "kafka.max_connections must be an integer", id="truth"),
        pytest.param(
            "kafka.max_connections = 1.5", "kafka.max_connections must be an integer", id="fraction"
        ),
        pytest.param("kafka.max_connections = 0", "from 1 to 1000000, not 0", id="below its range"),
        pytest.param("node.id = 2147483648", "from 0 to 2147483647", id="above its range"),
        pytest.param(
            "topics.auto_create = 1", "topics.auto_create must be true or false", id="digit for truth"
        ),
        pytest.param("node.data_dir = ''", "node.data_dir must be the path", id="empty path"),
        pytest.param("node.data_dir = 3", "node.data_dir must be the path", id="number for a path"),
        pytest.param("kafka.listen = 9092", "kafka.listen must be an address", id="port only"),
        pytest.param("kafka.listen = ''", "kafka.listen must be an address", id="empty address"),
        pytest.param("kafka.listen = 'a:70000'", "ports are 0 to 65535", id="port too large"),
        pytest.param("kafka.listen = {}", "kafka.listen must be an address", id="table for an address"),
        pytest.param("logging.level = 'loud'", "one of debug, info, warning, error", id="unknown word"),
        pytest.param("kafka = 3", "kafka must be a table", id="section that is a number"),
        pytest.param(
            "topics.defaults = 3", "topics.defaults must be a table", id="defaults that are a number"
        ),
        pytest.param("topics.defaults.retention.ms = -2", "below its minimum", id="setting below its range"),
        pytest.param(
            "topics.defaults.retention.ms = true", "must be a string or a number", id="setting as truth"
        ),
        pytest.param("topics.defaults.cleanup.policy = 'burn'", "not one of compact", id="unknown policy"),
        pytest.param(
            "kafka.in_flight_bytes = 1024", "at least kafka.max_request_bytes", id="room for no request"
        ),
        pytest.param("topics.max_partitions = 2", "at most topics.max_partitions", id="room for no topic"),
        pytest.param("http.in_flight_bytes = 1024", "at least http.max_body_bytes", id="room for no body"),
        pytest.param("sqs.in_flight_bytes = 1024", "at least sqs.max_body_bytes", id="room for no message"),
        pytest.param("sqs.account_id = '12'", "sqs.account_id must be 12 digits", id="half an account"),
        pytest.param("sqs.region = ''", "sqs.region must be the name of a region", id="region nowhere"),
        pytest.param("sqs.access_key_id = 'a'", "set both or neither", id="key without its secret"),
        pytest.param("sqs.secret_access_key = 'a'", "set both or neither", id="secret without its key"),
    ],
)
def test_an_invalid_value_is_rejected_by_name(tmp_path: Path, text: str, expected: str) -> None:
    message = refusal(tmp_path, text)
    assert expected in message


def test_a_secret_is_not_repeated_in_an_error(tmp_path: Path) -> None:
    message = refusal(tmp_path, "sqs.secret_access_key = 271828")
    assert "sqs.secret_access_key must be a string" in message
    assert "271828" not in message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_sqs_needs_no_credentials_on_localhost(tmp_path: Path, host: str) -> None:
    assert load(written(tmp_path, f"sqs.listen = '{host}:0'"), {}, {}).sqs.access_key_id == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "a.example"])  # noqa: S104
def test_sqs_without_credentials_rejects_other_interfaces(tmp_path: Path, host: str) -> None:
    listen = f"[sqs]\nlisten = '{host}:9324'\n"
    message = refusal(tmp_path, listen)
    assert message.startswith(f"sqs.listen ({host}:9324) is reachable from other machines")
    for meant in (
        "allow_anonymous = true",
        "[security]\nallow_anonymous = true",
        "[security]\nauthentication = true",
        "access_key_id = 'id'\nsecret_access_key = 'secret'",
        "enabled = false",
    ):
        load(written(tmp_path, f"{listen}{meant}"), {}, {})


@pytest.mark.parametrize("section", ["kafka", "http"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "a.example"])  # noqa: S104
def test_other_interfaces_need_authentication(tmp_path: Path, section: str, host: str) -> None:
    listen = f"[{section}]\nlisten = '{host}:9000'\n"
    message = refusal(tmp_path, listen)
    assert f"{section}.listen ({host}:9000) is reachable from other machines" in message
    assert "security.authentication" in message
    assert "security.allow_anonymous" in message
    for meant in ("authentication = true", "allow_anonymous = true"):
        load(written(tmp_path, f"{listen}[security]\n{meant}"), {}, {})
    load(written(tmp_path, f"[{section}]\nlisten = 'localhost:9000'"), {}, {})


def test_an_error_names_the_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, "node.id = -1").startswith(f"{tmp_path / 'alpacamq.toml'}: node.id ")


def test_a_file_that_is_not_toml_is_rejected_with_the_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[kafka]\nlisten = = 3")
    assert "is not TOML" in message
    assert "line 2" in message


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(path, {}, {})


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        load(tmp_path / "absent.toml", {}, {})


def test_an_unknown_variable_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"ALPACAMQ_KAFKA_LISTN .* did you mean ALPACAMQ_KAFKA_LISTEN\?"):
        load(None, {"ALPACAMQ_KAFKA_LISTN": "a:1"}, {})


def test_a_bad_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"ALPACAMQ_KAFKA_MAX_CONNECTIONS must be an integer .* not 'many'"):
        load(None, {"ALPACAMQ_KAFKA_MAX_CONNECTIONS": "many"}, {})


def test_a_bad_value_on_the_command_line_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.listen on the command line must be an address"):
        load(None, {}, {"kafka.listen": "nowhere"})


def test_an_unknown_key_on_the_command_line_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"kafka.listn; did you mean kafka.listen\?"):
        load(None, {}, {"kafka.listn": "a:1"})


def test_other_variables_are_ignored() -> None:
    assert load(None, {"HOME": "/", "ALPACA_X": "1"}, {}) == NodeConfig()


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    environ = {
        "ALPACAMQ_SERVICE_HOST": "10.0.0.1",
        "ALPACAMQ_SERVICE_PORT": "9092",
        "ALPACAMQ_SERVICE_PORT_KAFKA": "9092",
        "ALPACAMQ_PORT": "tcp://10.0.0.1:9092",
        "ALPACAMQ_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "ALPACAMQ_PORT_9092_TCP_PROTO": "tcp",
        "ALPACAMQ_KAFKA_SERVICE_HOST": "10.0.0.1",
        "ALPACAMQ_KAFKA_PORT": "tcp://10.0.0.1:9092",
    }
    assert load(None, environ, {}) == NodeConfig()


def test_the_variables_of_clients_are_ignored() -> None:
    for name in ("ALPACAMQ_ADDRESS", "ALPACAMQ_USER", "ALPACAMQ_PASSWORD"):
        assert load(None, {name: "broker.example:8080"}, {}) == NodeConfig()


def test_a_port_variable_is_not_mistaken_for_a_kubernetes_service() -> None:
    with pytest.raises(ConfigError, match="ALPACAMQ_KAFKA_PORT matches no option"):
        load(None, {"ALPACAMQ_KAFKA_PORT": "9092"}, {})


def test_topic_defaults_are_read_bare_quoted_and_as_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, '[topics.defaults]\nretention.ms = 5\n"cleanup.policy" = "compact"')
    environ = {"ALPACAMQ_TOPICS_DEFAULTS_FLUSH_MESSAGES": "1"}
    defaults = load(path, environ, {"topics.defaults.segment.bytes": "2048"}).topics.defaults
    assert defaults == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
        "flush.messages": "1",
        "segment.bytes": "2048",
    }


@pytest.mark.parametrize(
    ("listen", "advertised", "expected"),
    [
        pytest.param("127.0.0.1:0", None, "127.0.0.1:5000", id="as bound"),
        pytest.param("localhost:0", None, "localhost:5000", id="by the name it was given"),
        pytest.param("0.0.0.0:0", None, "machine:5000", id="every interface: the host's name"),
        pytest.param("[::]:0", None, "machine:5000", id="every IPv6 interface: the host's name"),
        pytest.param("0.0.0.0:0", "broker.example.com:9092", "broker.example.com:9092", id="as told"),
        pytest.param("0.0.0.0:0", "broker.example.com:0", "broker.example.com:5000", id="told the host only"),
    ],
)
def test_clients_get_a_reachable_address(listen: str, advertised: str | None, expected: str) -> None:
    kafka = KafkaConfig(
        listen=Address.parse(listen), advertised=Address.parse(advertised) if advertised else None
    )
    bound = Address("127.0.0.1" if kafka.listen.host == "localhost" else kafka.listen.host, 5000)
    first = NodeConfig(kafka=kafka).listeners_of(ListenerApi.KAFKA)[0].config
    assert str(first.advertised_for(bound, "machine")) == expected
