"""Everything that the error reference names exists: commands, settings, requests and values.

The texts that users see are in tests/integration/test_error_texts.py.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import alpacamq
from alpacamq.api.grpc.errors import InvalidField
from alpacamq.api.registry import app as registry_app
from alpacamq.api.registry import settings, subjects
from alpacamq.api.rest.table import ROUTES
from alpacamq.api.sqs import requests as sqs_requests
from alpacamq.cli.reference import all_commands
from alpacamq.client.aio.topic import producer_settings
from alpacamq.client.errors import DeliveryTimedOut
from alpacamq.coordinator.consumer.assignment import ASSIGNORS
from alpacamq.coordinator.messages import GroupSettings
from alpacamq.model.lanes import LANES_BY_NAME
from alpacamq.model.topics import SETTINGS
from alpacamq.node.config import OPTIONS, load
from alpacamq.protocol.apis import APIS
from alpacamq.registry.settings import CompatibilityLevel, Mode
from alpacamq.security.principals import Principal
from alpacamq.security.quotas import ENTITY_TYPES
from alpacamq.security.scram import Mechanism

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
NODE_MAIN = ROOT / "src" / "alpacamq" / "node" / "main.py"
CODE = re.compile(r"`([^`]+)`")
COMMANDS = {command.words: command.parser for command in all_commands()}
# Of HTTP, of characters and of Python, and fields of errors that the sentence explains.
WORDS = {
    *("Allow", "Expect", "Host", "Content-Type: application/json", "100-continue", "text/plain", "fetch"),
    *(".", "_", "-", "Id", ".proto", "BadRequest", "dmesg", "with", "open.credit", "reasons"),
    *("leader", "controller", "coordinator", "retry_after_ms", "latest", "_schemas"),
    "schema_worker_not_started",
}


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("error_reference")


def texts(reference: Any) -> Iterator[str]:
    for remedies in (*reference.GROUPS.values(), reference.CLIENT):
        for kind, remedy in remedies.items():
            yield from (reference.cause_of(kind), remedy)
    for table in (reference.KAFKA_ONLY, reference.SQS_ONLY, reference.HTTP_ONLY):
        for pair in table.values():
            yield from pair


def is_command(text: str) -> bool:
    """Return whether a line begins with a command of ours, and all of its options exist."""
    program, *words = text.split()
    if program == "alpacamq":
        return f'add_parser("{words[0]}"' in re.sub(r"\(\s+", "(", NODE_MAIN.read_text())
    named = tuple(word for word in words if word.islower() and not word.startswith(("-", "_")))
    options = {word for word in words if word.startswith("--")}
    if program != "alpacactl" or named not in COMMANDS:
        return False
    return options <= {name for action in COMMANDS[named]._actions for name in action.option_strings}


def is_option(text: str, directory: Path) -> bool:
    """Return whether a setting of the broker exists, and takes the value if there is one."""
    name, _, value = text.partition(" = ")
    if name not in OPTIONS:
        return False
    if value:
        section, _, key = name.partition(".")
        path = directory / "alpacamq.toml"
        extra = "users_file = 'users'\nsuper_users = ['User:admin']\n" if section == "security" else ""
        path.write_text(f"[{section}]\n{key} = {value}\n{extra}")
        load(path, {}, {})
    return True


def is_topic_setting(text: str) -> bool:
    name, _, value = text.partition("=")
    if name not in SETTINGS:
        return False
    if value:
        SETTINGS[name].parse(name, value)
    return True


def is_client_setting(text: str) -> bool:
    """Return whether librdkafka knows a setting; with an invalid value, it complains about that."""
    try:
        confluent_kafka.Consumer({"group.id": "test", text.partition("=")[0]: "nonsense"})
    except confluent_kafka.KafkaException as error:
        return "No such configuration property" not in str(error)
    return True


def is_request(text: str) -> bool:
    """Return whether a text is a method and path, a request of Kafka or an action of SQS."""
    if text == "GET /openapi.json" or any(f"{route.method} {route.path}" == text for route in ROUTES):
        return True
    return text in {api.name for api in APIS.values()} or hasattr(sqs_requests, text)


def parameters() -> set[str]:
    """Return query parameters of the schema registry with values, as they are written in URLs."""
    kinds = [kind for module in (settings, subjects) for kind in vars(module).values()]
    fields = {
        name
        for kind in kinds
        for name in getattr(kind, "__struct_encode_fields__", ())
        if isinstance(kind, type)
    }
    return {f"{name}=true" for name in fields}


def is_value(text: str) -> bool:
    """Return whether a text is a value that requests or calls may contain."""
    return text in {
        *LANES_BY_NAME,
        *ASSIGNORS,
        *ENTITY_TYPES,
        *Mode,
        *CompatibilityLevel,
        "_TRANSITIVE",
        *Mechanism,
        *("PLAIN", "OAUTHBEARER", "SASL_PLAINTEXT", "SASL_SSL"),
        *registry_app._CONTENT_TYPES,
        *parameters(),
        *inspect.signature(producer_settings).parameters,
        *inspect.signature(alpacamq.connect).parameters,
        *inspect.signature(DeliveryTimedOut).parameters,
        *inspect.signature(InvalidField).parameters,
        "await room()",
        str(Principal.parse("User:NAME")),
    }


def test_everything_that_the_error_reference_names_exists(reference: Any, tmp_path: Path) -> None:
    checks: Mapping[str, Callable[[str], bool]] = {
        "command": is_command,
        "option": lambda text: is_option(text, tmp_path),
        "topic setting": is_topic_setting,
        "request": is_request,
        "value": is_value,
        "word": WORDS.__contains__,
        "client setting": lambda text: "." in text and is_client_setting(text),
    }
    named = {text for each in texts(reference) for text in CODE.findall(each)}
    assert len(named) > 100
    unknown = {text for text in named if not any(check(text) for check in checks.values())}
    assert not unknown


@pytest.mark.parametrize(
    "text",
    [
        "alpacactl topics undelete",
        "alpacactl acl add --everything",
        "alpacamq mend",
        "groups.max_groups",
        "queue.max.deliverys",
        "max.poll.interval",
        "POST /producers/begin",
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, tmp_path: Path) -> None:
    assert not is_command(text) or not text.startswith("alpaca")
    assert not is_option(text, tmp_path)
    assert not is_topic_setting(text)
    assert not is_request(text)
    assert "." not in text or not is_client_setting(text)


def test_fixed_limits_are_those_of_the_code(reference: Any) -> None:
    """Of limits that no setting changes, whose numbers the page states."""
    limits = GroupSettings()
    remedies = {kind.__name__: text for group in reference.GROUPS.values() for kind, text in group.items()}
    assert (limits.min_session_timeout_ms, limits.max_session_timeout_ms) == (1000, 30 * 60_000)
    assert "from 1 second to 30 minutes" in remedies["InvalidSessionTimeout"]
    assert f"{limits.max_metadata_bytes:,} bytes" in remedies["OffsetMetadataTooLarge"]
    assert f"{limits.max_groups:,} groups" in remedies["TooManyGroups"]
