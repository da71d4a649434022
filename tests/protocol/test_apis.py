"""The table of what is served, against Kafka's own numbers."""

import inspect

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map

from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.notation import Message

from .oracle import UNKNOWN_TO_KIO, kio_class
from .specimens import name_of, served


def test_every_key_is_served() -> None:
    assert set(APIS) == set(ApiKey)


@pytest.mark.parametrize("key", ApiKey, ids=name_of)
def test_a_key_has_kafkas_number(key: ApiKey) -> None:
    assert api_key_map[key] == key.name.lower()


@pytest.mark.parametrize(("api", "version"), served(), ids=name_of)
def test_requests_and_responses_turn_flexible_when_kafkas_do(api: Api, version: int) -> None:
    if (api.name, version) in UNKNOWN_TO_KIO:
        assert version < api.flexible_from
        return
    for message in (api.request, api.response):
        assert kio_class(api, version, message).__flexible__ == (version >= api.flexible_from)


def test_produce_is_advertised_from_0_so_that_librdkafka_compresses() -> None:
    assert APIS[ApiKey.PRODUCE].advertised_min == 0
    assert not APIS[ApiKey.PRODUCE].serves(2)


def test_everything_else_is_advertised_as_it_is_served() -> None:
    assert all(api.advertised_min == api.min_version for key, api in APIS.items() if key != ApiKey.PRODUCE)


def test_error_codes_have_kafkas_names_and_numbers() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        code.name.upper(): int(code) for code in KioErrorCode
    }


def test_every_message_is_named_for_its_api() -> None:
    for api in APIS.values():
        assert inspect.isclass(api.request)
        assert issubclass(api.request, Message)
        assert (api.request.__name__, api.response.__name__) == (f"{api.name}Request", f"{api.name}Response")
