"""Methods that are routes of the HTTP API: that both have the same fields, and that calls do the same."""

import typing
from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

import grpc
import httpx
import msgspec
import msgspec.inspect as inspect
import pytest
from google.api.annotations_pb2 import http
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass

from alpacamq.api.grpc.services import TRANSCODED
from alpacamq.api.grpc.transcoding import (
    NULLABLE,
    Binding,
    bindings,
    enum_texts,
    fill,
    is_list,
    is_map,
    json_name,
)
from alpacamq.api.registry.app import MOUNT
from alpacamq.api.registry.app import ROUTES as REGISTRY_ROUTES
from alpacamq.api.rest.errors import Problem
from alpacamq.api.rest.table import ROUTES
from alpacamq.registry.settings import ConfigUpdate
from alpacamq.v1 import (
    acls_pb2,
    admin_pb2,
    delays_pb2,
    groups_pb2,
    keys_pb2,
    messages_pb2,
    producer_pb2,
    quotas_pb2,
    schemas_pb2,
    tenants_pb2,
    traces_pb2,
    transactions_pb2,
    users_pb2,
)
from tests.brokers import Broker

from .client import Client, connected, refusal

METHODS: list[MethodDescriptor] = [method for service in TRANSCODED for method in service.methods]
CASES = [pytest.param(method, id=f"{method.containing_service.name}.{method.name}") for method in METHODS]

_DECODING = "over gRPC, keys and values are bytes"
_RULES = "rules are only for serializers, which use the registry's own API"
_CONFLUENT = "for compatibility with Confluent's registry only"
# Fields of routes that methods leave out, and why.
LEFT_OUT = {
    ("Groups.CommitOffsets", "reset"): "ResetOffsets has it",
    ("Groups.CommitOffsets", "dry_run"): "ResetOffsets has it",
    ("Groups.ResetOffsets", "offsets"): "CommitOffsets has it",
    ("Groups.ResetOffsets", "member_id"): "CommitOffsets has it",
    ("Groups.ResetOffsets", "member_epoch"): "CommitOffsets has it",
    ("Admin.FindMessages", "key"): _DECODING,
    ("Admin.FindMessages", "values"): _DECODING,
    ("Admin.FindMessages", "decode"): _DECODING,
    ("Groups.PeekQueue", "values"): _DECODING,
    ("Groups.PeekQueue", "decode"): _DECODING,
    ("Delays.Get", "values"): _DECODING,
    ("PeekedMessage", "key"): _DECODING,
    ("PeekedMessage", "value"): _DECODING,
    ("PeekedMessage", "key_decoded"): _DECODING,
    ("PeekedMessage", "value_decoded"): _DECODING,
    ("DelayedContent", "key"): _DECODING,
    ("DelayedContent", "value"): _DECODING,
    ("Schemas.ListVersions", "deletedAsNegative"): _CONFLUENT,
    ("Schemas.GetSchema", "fetchMaxId"): _CONFLUENT,
    ("NewSchema", "ruleSet"): _RULES,
    ("NewSchema", "schemaTagsToAdd"): "not supported",
    ("NewSchema", "schemaTagsToRemove"): "not supported",
    ("Schema", "ruleSet"): _RULES,
    ("Schema", "maxId"): _CONFLUENT,
    **{
        (message, name): reason
        for message in ("SchemaConfig", "NewSchemaConfig")
        for name, reason in {
            "aliasForDeks": _CONFLUENT,
            "validateNewSchemas": _CONFLUENT,
            "compatibilityPolicy": _CONFLUENT,
            "defaultRuleSet": _RULES,
            "overrideRuleSet": _RULES,
        }.items()
    },
    ("NewSchemaConfig", "compatibilityLevel"): "`compatibility` is the name in requests",
    ("Schemas.GetMode", "subject"): "in the path",
    ("Schemas.DeleteConfig", "defaultToGlobal"): "only of GetConfig",
    ("Schemas.SetConfig", "defaultToGlobal"): "only of GetConfig",
    ("Schemas.SetMode", "recursive"): "only of DeleteMode",
    ("Schemas.DeleteMode", "force"): "only of SetMode",
}


def _route(binding: Binding) -> Any:
    """Return the route of a binding."""
    path = binding.path
    routes: Sequence[Any] = ROUTES
    if path.startswith(f"{MOUNT}/"):
        routes = REGISTRY_ROUTES
        inner = path.removeprefix(MOUNT)
        path = path if inner.split("/")[1] in ("ids", "types") else inner
    found = [route for route in routes if (route.method, route.path) == (binding.method, path)]
    assert len(found) == 1, f"no route {binding.method} {path}"
    return found[0]


def _fields(kind: Any) -> dict[str, inspect.Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), kind
    return {field.encode_name: field for field in info.fields}


def _body_type(route: Any) -> Any:
    if route.body == dict[str, Any]:  # of Config, parsed by its handler
        return ConfigUpdate
    return route.body


def _answer_type(route: Any) -> Any:
    answers = getattr(route, "answers", None)
    if answers is None:
        return typing.get_type_hints(route.handler)["return"]
    assert len(answers) <= 1
    return answers[0] if answers else None


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """Return the types that a value may have, without null and constraints."""
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [each for some in kind.types for each in _alternatives(some)]
    return [] if isinstance(kind, inspect.NoneType) else [kind]


_SCALARS: dict[type[inspect.Type], set[int]] = {
    inspect.IntType: {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64},
    inspect.FloatType: {FieldDescriptor.TYPE_DOUBLE},
    inspect.BoolType: {FieldDescriptor.TYPE_BOOL},
    inspect.StrType: {FieldDescriptor.TYPE_STRING},
    inspect.BytesType: {FieldDescriptor.TYPE_BYTES},
    inspect.DateTimeType: {FieldDescriptor.TYPE_INT64},
}


def _check_type(field: FieldDescriptor, kind: inspect.Type, *, camel: bool) -> None:
    """Assert that a field has the type of a JSON value."""
    where = field.full_name
    kinds = _alternatives(kind)
    if field.message_type is not None and field.message_type.full_name == "alpacamq.v1.Header":
        assert field.is_repeated, where
        assert any(isinstance(each, inspect.DictType) for each in kinds), where
        return
    if is_map(field):
        (kind,) = kinds
        assert isinstance(kind, inspect.DictType), where
        value = field.message_type.fields_by_name["value"]
        if value.type == FieldDescriptor.TYPE_STRING:  # settings: text for values of any type
            assert any(
                isinstance(each, inspect.StrType | inspect.EnumType)
                for each in _alternatives(kind.value_type)
            )
        elif value.message_type is None or value.message_type.full_name != "google.protobuf.Value":
            _check_item(value, kind.value_type, camel=camel)
        return
    if field.is_repeated:
        (kind,) = kinds
        assert isinstance(kind, inspect.ListType | inspect.VarTupleType), where
        _check_item(field, kind.item_type, camel=camel)
        return
    _check_item(field, kind, camel=camel)


def _check_item(field: FieldDescriptor, kind: inspect.Type, *, camel: bool) -> None:
    where = field.full_name
    kinds = _alternatives(kind)
    if any(isinstance(each, inspect.DateTimeType) for each in kinds):
        assert field.type == FieldDescriptor.TYPE_INT64, where
        return
    (kind,) = kinds
    if isinstance(kind, inspect.EnumType):
        if field.enum_type is None:
            assert field.type == FieldDescriptor.TYPE_STRING, where
        else:
            assert set(enum_texts(field.enum_type).values()) == {each.value for each in kind.cls}, where
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        assert is_list(field.message_type), where
        _check_item(field.message_type.fields[0], kind.item_type, camel=camel)
    elif isinstance(kind, inspect.StructType):
        assert field.message_type is not None, where
        if kind.cls is Problem:
            assert field.message_type.full_name == "google.rpc.Status", where
        else:
            _check_message(field.message_type, kind.cls, camel=camel)
    else:
        assert field.type in _SCALARS[type(kind)], where


def _check_message(message: Descriptor, kind: type[msgspec.Struct], *, camel: bool) -> None:
    """Assert that a message has the fields of a struct, and no others."""
    known = _fields(kind)
    names = {json_name(field, camel=camel): field for field in message.fields}
    if names.pop("unset", None) is not None and "settings" not in names:
        assert all(_is_nullable(field.type) for field in known.values())
    unknown = names.keys() - known.keys() - {"compatibility"}
    assert not unknown, f"{message.name} has {unknown}, {kind.__name__} has not"
    missing = {name for name in known.keys() - names.keys() if (message.name, name) not in LEFT_OUT}
    assert not missing, f"{message.name} lacks {missing} of {kind.__name__}"
    for name, field in names.items():
        if name in known:
            _check_type(field, known[name].type, camel=camel)
            _check_presence(field, known[name])


def _check_presence(field: FieldDescriptor, known: inspect.Field) -> None:
    """Assert that a field can be left out if, and only if, it can in JSON."""
    if field.is_repeated or field.message_type is not None:
        return
    assert field.has_presence == (not known.required or _is_nullable(known.type)), field.full_name


def _is_nullable(info: inspect.Type) -> bool:
    return isinstance(info, inspect.UnionType) and any(
        isinstance(each, inspect.NoneType) for each in info.types
    )


@pytest.mark.parametrize("method", CASES)
def test_the_request_has_the_parameters_and_body_of_its_route(method: MethodDescriptor) -> None:
    name = f"{method.containing_service.name}.{method.name}"
    for binding in bindings(method):
        route = _route(binding)
        camel = binding.path.startswith(MOUNT)
        message = method.input_type
        fields = {json_name(field, camel=camel): field for field in message.fields}
        assert set(binding.path_names) == set(route.path_names)
        parameters = _fields(route.parameters)
        in_body: dict[str, inspect.Field] = {}
        if binding.body == "*":
            in_body = _fields(route.body)
        elif binding.body:
            _check_message(fields.pop(binding.body).message_type, _body_type(route), camel=camel)
        else:
            assert route.body.__name__ == "Nothing"
        if "unset" in fields:
            assert "settings" in in_body
            del fields["unset"]
        known = {**parameters, **in_body}
        others = {
            each for one in bindings(method) for each in one.path_names if each not in binding.path_names
        }
        for field_name, field in fields.items():
            if field_name in others:
                continue
            assert field_name in known, f"{name} has {field_name}, its route has not"
            if name != "Schemas.GetSchema" or field_name != "id":  # a number, which its handler parses
                _check_type(field, known[field_name].type, camel=camel)
            if field_name not in binding.path_names:
                _check_presence(field, known[field_name])
                # With a body of all fields, the query has none.
                assert binding.body != "*" or field_name in in_body
        missing = {each for each in known.keys() - fields.keys() if (name, each) not in LEFT_OUT}
        assert not missing, f"{name} lacks {missing}"


@pytest.mark.parametrize("method", CASES)
def test_the_response_has_the_fields_of_its_route(method: MethodDescriptor) -> None:
    binding = bindings(method)[0]
    camel = binding.path.startswith(MOUNT)
    answer = _answer_type(_route(binding))
    message = method.output_type
    if answer is None:
        assert message.full_name == "google.protobuf.Empty"
        return
    response_body = method.GetOptions().Extensions[http].response_body
    if response_body:
        (field,) = message.fields
        assert field.name == response_body
        _check_type(field, inspect.type_info(answer), camel=camel)
    elif answer == dict[str, Any]:  # what was sent
        assert message.name == "NewSchemaConfig"
    else:
        _check_message(message, answer, camel=camel)


def test_fields_that_routes_require_and_may_be_null_are_null_if_they_are_not_set() -> None:
    found = set()
    for method in METHODS:
        for binding in bindings(method):
            if binding.body == "*" and not binding.path.startswith(MOUNT):
                found |= _required_nulls(method.input_type, _route(binding).body)
    assert found == NULLABLE


def _required_nulls(message: Descriptor, kind: Any) -> set[str]:
    found = set()
    known = _fields(kind)
    for field in message.fields:
        if (info := known.get(json_name(field, camel=False))) is None:
            continue
        if info.required and _is_nullable(info.type):
            found.add(field.full_name)
        for each in _alternatives(info.type):
            item = each.item_type if isinstance(each, inspect.ListType) else each
            for inner in _alternatives(item):
                if isinstance(inner, inspect.StructType) and field.message_type is not None:
                    found |= _required_nulls(field.message_type, inner.cls)
    return found


def test_every_exception_is_one() -> None:
    """An entry for something that is not left out is stale."""
    messages = {field.containing_type.name for field in _all_fields()}
    names = {f"{method.containing_service.name}.{method.name}" for method in METHODS}
    assert {where for where, _ in LEFT_OUT} <= messages | names


def _all_fields() -> Iterator[FieldDescriptor]:
    seen: set[str] = set()
    left = [kind for method in METHODS for kind in (method.input_type, method.output_type)]
    while left:
        message = left.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            yield field
            if field.message_type is not None:
                left.append(field.message_type)


def test_every_route_has_a_method_or_a_reason() -> None:
    """A new route of the HTTP API needs a method, or an entry here."""
    elsewhere = {
        "POST /topics/{topic}/messages": "Producer",
        "POST /transactions/publish": "Producer",
        "GET /topics/{topic}/messages": "Log.Read",
        "GET /topics/{topic}/partitions/{partition}/messages": "Log.Read",
        "POST /groups/{group}/join": "Log.Subscribe",
        "POST /groups/{group}/heartbeat": "Log.Subscribe",
        "POST /groups/{group}/leave": "Log.Subscribe",
        "GET /groups/{group}/poll": "Queue, Log.Subscribe",
        "POST /groups/{group}/poll": "Queue",
        "POST /messages/ack": "Queue",
        "POST /messages/nack": "Queue",
        "POST /messages/reject": "Queue",
        "POST /messages/visibility": "Queue",
        "GET /healthz": "grpc.health.v1",
        "GET /readyz": "grpc.health.v1",
        "GET /livez": "grpc.health.v1",
        "GET /cluster": "Cluster.Endpoints",
        "GET /version": "Admin.BrokerStats",
    }
    http_only = {
        "GET /metrics",
        "GET /openapi.json",
        "GET /session",
        "POST /session",
        "DELETE /session",
    }
    served = {f"{each.method} {each.path}" for method in METHODS for each in bindings(method)}
    missing = {
        key
        for route in ROUTES
        if (key := f"{route.method} {route.path}") not in served
        and key not in elsewhere
        and key not in http_only
    }
    assert not missing


# Calls.


def _method(client: Client, method: str, request: Any) -> Any:
    """Call a method of a transcoded service with a request; return the response."""
    service, name = method.split(".")
    (found,) = (each for each in METHODS if (each.containing_service.name, each.name) == (service, name))
    reply = GetMessageClass(found.output_type)
    return client.unary(f"/alpacamq.v1.{service}/{name}", type(request), reply)(request, timeout=60)


async def _send(client: Client, topic: str, *records: Any, **fields: Any) -> Any:
    call = client.unary("/alpacamq.v1.Producer/Send", producer_pb2.SendRequest, producer_pb2.SendResponse)
    return await call(producer_pb2.SendRequest(topic=topic, records=records, **fields), timeout=60)


async def test_a_topic_is_created_changed_and_deleted(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        request = admin_pb2.CreateTopicRequest(
            name="transcoded", partitions=2, settings={"retention.ms": "60000"}
        )
        created = await _method(client, "Admin.CreateTopic", request)
        assert created.overrides == {"retention.ms": "60000"}
        assert [each.partition for each in created.partitions] == [0, 1]

        change = admin_pb2.AlterTopicRequest(
            topic="transcoded", settings={"max.message.bytes": "5000"}, unset=["retention.ms"]
        )
        changed = await _method(client, "Admin.AlterTopic", change)
        assert changed.overrides == {"max.message.bytes": "5000"}

        grown = await _method(
            client, "Admin.AddPartitions", admin_pb2.AddPartitionsRequest(topic="transcoded", partitions=3)
        )
        assert len(grown.partitions) == 3
        listed = await _method(
            client, "Admin.ListTopics", admin_pb2.ListTopicsRequest(prefix="transcoded", limit=1)
        )
        assert [each.partitions for each in listed.topics] == [3]
        assert not listed.HasField("next")

        deleted = await _method(client, "Admin.DeleteTopic", admin_pb2.DeleteTopicRequest(topic="transcoded"))
        assert deleted == Empty()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Admin.DescribeTopic", admin_pb2.DescribeTopicRequest(topic="transcoded"))
        refused = refusal(raised.value)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.reason == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    ("method", "request_", "code", "reason", "fields"),
    [
        pytest.param(
            "Admin.CreateTopic",
            admin_pb2.CreateTopicRequest(name="no/slash"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["/name"],
            id="input that violates the schema",
        ),
        pytest.param(
            "Admin.CreateTopic",
            admin_pb2.CreateTopicRequest(name="wrong-setting", settings={"retention.ms": "soon"}),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_CONFIG",
            [],
            id="a setting that is wrong",
        ),
        pytest.param(
            "Groups.DescribeGroup",
            groups_pb2.DescribeGroupRequest(group="no such group"),
            grpc.StatusCode.NOT_FOUND,
            "GROUP_ID_NOT_FOUND",
            [],
            id="a group that is not there",
        ),
        pytest.param(
            "Groups.DescribeGroup",
            groups_pb2.DescribeGroupRequest(),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["group"],
            id="a name in the path is missing",
        ),
        pytest.param(
            "Schemas.GetVersion",
            schemas_pb2.GetVersionRequest(subject="none", version="1"),
            grpc.StatusCode.NOT_FOUND,
            "SUBJECT_NOT_FOUND",
            [],
            id="a subject that is not there",
        ),
        pytest.param(
            "Schemas.Register",
            schemas_pb2.RegisterRequest(subject="bad", schema=schemas_pb2.NewSchema(schema="{")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_SCHEMA",
            [],
            id="a schema that is none",
        ),
    ],
)
async def test_errors_have_a_code_a_reason_and_the_field(
    broker: Broker, method: str, request_: Any, code: Any, reason: str, fields: list[str]
) -> None:
    async with connected(broker.grpc_address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, method, request_)
    refused = refusal(raised.value)
    assert (raised.value.code(), refused.reason, refused.fields) == (code, reason, fields)


async def test_a_delayed_message_is_shown_with_its_bytes_and_cancelled(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        headers = [messages_pb2.Header(key="a", value=b"\xff"), messages_pb2.Header(key="b")]
        record = messages_pb2.NewRecord(key=b"\x00", value=b"\xfe", delay_ms=3_600_000, headers=headers)
        sent = await _send(client, "delays-over-grpc", record)
        (delayed,) = sent.result.delayed
        shown = await _method(
            client, "Delays.Get", delays_pb2.GetDelayedRequest(topic="delays-over-grpc", id=delayed.id)
        )
        assert (shown.key, shown.value, list(shown.headers)) == (b"\x00", b"\xfe", headers)
        listed = await _method(client, "Delays.List", delays_pb2.ListDelayedRequest(topic="delays-over-grpc"))
        assert [each.id for each in listed.messages] == [delayed.id]
        cancelled = await _method(
            client,
            "Delays.Cancel",
            delays_pb2.CancelDelayedRequest(
                topic="delays-over-grpc", partition=shown.partition, offset=delayed.id
            ),
        )
        assert cancelled.deliver_at == delayed.deliver_at_ms


async def test_offsets_are_committed_shown_and_reset_and_each_has_its_own_result(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        await _send(client, "offsets-over-grpc", messages_pb2.NewRecord(value=b"1", partition=0))
        commit = groups_pb2.CommitGroupOffsetsRequest(
            group="offsets",
            offsets=[
                groups_pb2.NewOffset(topic="offsets-over-grpc", partition=0, offset=1, metadata="here"),
                groups_pb2.NewOffset(topic="no-such-topic", partition=0, offset=1),
            ],
        )
        results = await _method(client, "Groups.CommitOffsets", commit)
        assert results.errors == 1
        assert [each.error.code for each in results.offsets] == [0, grpc.StatusCode.NOT_FOUND.value[0]]
        shown = await _method(client, "Groups.GetOffsets", groups_pb2.GetOffsetsRequest(group="offsets"))
        assert [(each.offset, each.metadata, each.lag) for each in shown.offsets] == [(1, "here", 0)]
        reset = groups_pb2.ResetGroupOffsetsRequest(
            group="offsets",
            reset=[
                groups_pb2.OffsetReset(topic="offsets-over-grpc", partition=0, to=messages_pb2.START_EARLIEST)
            ],
        )
        results = await _method(client, "Groups.ResetOffsets", reset)
        assert [each.offset for each in results.offsets] == [0]


async def test_a_queue_is_configured_described_and_deleted(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        await _send(client, "queue-over-grpc", messages_pb2.NewRecord(key=b"k", value=b"\xff"))
        name: dict[str, Any] = {"group": "workers", "topic": "queue-over-grpc"}
        settings = {"queue.max.deliveries": "7"}
        request = groups_pb2.ConfigureQueueRequest(settings=settings, **name)
        configured = await _method(client, "Groups.ConfigureQueue", request)
        assert configured.settings["queue.max.deliveries"] == "7"
        assert configured.totals.ready == 1
        peeked = await _method(client, "Groups.PeekQueue", groups_pb2.PeekQueueRequest(**name))
        assert [(each.key, each.value) for each in peeked.messages] == [(b"k", b"\xff")]
        purged = await _method(client, "Groups.PurgeQueue", groups_pb2.PurgeQueueRequest(**name))
        assert purged.totals.ready == 0
        await _method(client, "Groups.DeleteQueue", groups_pb2.DeleteQueueRequest(**name))


async def test_schemas_are_registered_compared_and_deleted(broker: Broker) -> None:
    first = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    second = '{"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}'
    async with connected(broker.grpc_address) as client:
        new = schemas_pb2.NewSchema(schema=first)
        registered = await _method(
            client, "Schemas.Register", schemas_pb2.RegisterRequest(subject="s-value", schema=new)
        )
        assert registered.version == 1
        by_id = await _method(client, "Schemas.GetSchema", schemas_pb2.GetSchemaRequest(id=registered.id))
        assert by_id.schema == registered.schema
        found = await _method(
            client, "Schemas.LookUp", schemas_pb2.LookUpRequest(subject="s-value", schema=new)
        )
        assert (found.subject, found.version) == ("s-value", 1)
        check = schemas_pb2.CheckCompatibilityRequest(
            subject="s-value", schema=schemas_pb2.NewSchema(schema=second), verbose=True
        )
        compared = await _method(client, "Schemas.CheckCompatibility", check)
        assert not compared.is_compatible
        assert compared.messages
        config = schemas_pb2.SetConfigRequest(
            subject="s-value", config=schemas_pb2.NewSchemaConfig(compatibility="NONE")
        )
        await _method(client, "Schemas.SetConfig", config)
        shown = await _method(client, "Schemas.GetConfig", schemas_pb2.GetConfigRequest(subject="s-value"))
        assert shown.compatibility_level == "NONE"
        general = await _method(client, "Schemas.GetConfig", schemas_pb2.GetConfigRequest())
        assert general.compatibility_level == "BACKWARD"
        versions = await _method(
            client, "Schemas.ListVersions", schemas_pb2.ListVersionsRequest(subject="s-value")
        )
        assert list(versions.versions) == [1]
        deleted = await _method(
            client, "Schemas.DeleteVersion", schemas_pb2.DeleteVersionRequest(subject="s-value", version="1")
        )
        assert deleted.version == 1


async def test_a_transaction_is_committed_with_its_records_and_offsets(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        await _send(client, "tx-over-grpc", messages_pb2.NewRecord(value=b"0", partition=0))
        producer = await _method(
            client, "Transactions.InitProducer", transactions_pb2.InitProducerRequest(transactional_id="tx-1")
        )
        state = producer_pb2.ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transactional_id="tx-1",
        )
        sent = await _send(
            client, "tx-over-grpc", messages_pb2.NewRecord(value=b"1", partition=0), producer=state
        )
        assert list(sent.result.offsets) == [1]
        identity = {
            "transactional_id": "tx-1",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        offsets = transactions_pb2.TransactionalOffsetsRequest(
            group="tx-group",
            offsets=[groups_pb2.NewOffset(topic="tx-over-grpc", partition=0, offset=1)],
            **identity,
        )
        assert (await _method(client, "Transactions.CommitOffsets", offsets)).errors == 0
        request = transactions_pb2.ListTransactionsRequest(
            state=transactions_pb2.TRANSACTION_STATE_ONGOING, transactional_id="tx-1"
        )
        ongoing = await _method(client, "Transactions.List", request)
        assert [each.transactional_id for each in ongoing.transactions] == ["tx-1"]
        following = await _method(
            client, "Transactions.Commit", transactions_pb2.TransactionRequest(**identity)
        )
        assert following.producer_epoch > producer.producer_epoch
        shown = await _method(client, "Groups.GetOffsets", groups_pb2.GetOffsetsRequest(group="tx-group"))
        assert [each.offset for each in shown.offsets] == [1]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Transactions.Abort", transactions_pb2.TransactionRequest(**identity))
        assert refusal(raised.value).reason == "INVALID_TXN_STATE"


async def test_keys_are_created_listed_rotated_and_deleted(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        new = keys_pb2.CreateKeyRequest(
            owner="erin", expires_in_ms=3_600_000, scopes=["read", "alter_configs"]
        )
        created = await _method(client, "Keys.Create", new)
        assert created.key.startswith(f"amq_{created.id}_")
        assert 3_500_000 < created.expires - created.created <= 3_600_000
        rotated = await _method(
            client, "Keys.Rotate", keys_pb2.RotateKeyRequest(id=created.id, overlap_ms=60_000)
        )
        assert rotated.key != created.key
        listed = await _method(client, "Keys.List", keys_pb2.ListKeysRequest())
        own = [each for each in listed.keys if each.owner == "erin"]
        assert {each.id for each in own} == {created.id, rotated.id}
        assert [list(each.scopes) for each in own] == [["read", "alter-configs"]] * 2
        for each in own:
            await _method(client, "Keys.Delete", keys_pb2.DeleteKeyRequest(id=each.id))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Keys.Delete", keys_pb2.DeleteKeyRequest(id=created.id))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_users_and_quotas_are_created_changed_and_deleted(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        words = ("long enough", "another one")
        new = users_pb2.CreateUserRequest(name="ursula", password=words[0], mechanisms=["SCRAM-SHA-512"])
        created = await _method(client, "Users.Create", new)
        ways = [(each.mechanism, each.iterations) for each in created.credentials]
        assert ways == [("SCRAM-SHA-512", 4096)]
        change = users_pb2.ChangePasswordRequest(user="ursula", password=words[1], iterations=8192)
        changed = await _method(client, "Users.ChangePassword", change)
        assert [each.iterations for each in changed.credentials] == [8192]
        listed = await _method(client, "Users.List", users_pb2.ListUsersRequest(prefix="urs"))
        assert list(listed.users) == [changed]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Users.Create", new)
        assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS

        whose: dict[str, Any] = {"user": "ursula", "defaults": ["client_id"]}
        values = quotas_pb2.QuotaValues(producer_byte_rate=1000, request_percentage=12.5)
        alter = quotas_pb2.AlterQuotasRequest(values=values, **whose)
        quota = await _method(client, "Quotas.Alter", alter)
        assert dict(quota.values) == {"producer_byte_rate": 1000, "request_percentage": 12.5}
        assert (quota.user, quota.HasField("client_id")) == ("ursula", False)
        assert list(quota.defaults) == ["client_id"]
        found = await _method(client, "Quotas.List", quotas_pb2.ListQuotasRequest(user="ursula"))
        assert (list(found.quotas), found.total) == ([quota], 1)
        removal = quotas_pb2.QuotaValues(unset=["producer_byte_rate", "request_percentage"])
        alter = quotas_pb2.AlterQuotasRequest(values=removal, **whose)
        assert not (await _method(client, "Quotas.Alter", alter)).values

        await _method(client, "Users.Delete", users_pb2.DeleteUserRequest(user="ursula"))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Users.Delete", users_pb2.DeleteUserRequest(user="ursula"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_access_rules_that_are_not_in_force_are_refused(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        new = acls_pb2.CreateAclRequest(resource="topic", name="t", principal="User:a", operation="read")
        for method, request in (
            ("Acls.List", acls_pb2.ListAclsRequest()),
            ("Acls.Create", new),
            ("Acls.Delete", acls_pb2.DeleteAclRequest(id="x")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _method(client, method, request)
            assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_tenant_is_created_limited_suspended_and_deleted(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        limits = tenants_pb2.NewTenantLimits(topics=0, storage_bytes=2**40)
        new = tenants_pb2.CreateTenantRequest(id="grpc-tenant", description="first", limits=limits)
        created = await _method(client, "Tenants.Create", new)
        assert (created.status, dict(created.limits)) == ("active", {"topics": 0, "storage_bytes": 2**40})

        limits = tenants_pb2.NewTenantLimits(groups=7, unset=["topics"])
        change = tenants_pb2.AlterTenantRequest(tenant="grpc-tenant", limits=limits)
        changed = await _method(client, "Tenants.Alter", change)
        assert changed.description == "first"
        assert dict(changed.limits) == {"storage_bytes": 2**40, "groups": 7}

        named = {"tenant": "grpc-tenant", "principal": "User:tina"}
        joined = await _method(
            client, "Tenants.SetPrincipal", tenants_pb2.SetTenantPrincipalRequest(admin=True, **named)
        )
        assert [(each.principal, each.admin) for each in joined.principals] == [("User:tina", True)]
        await _method(client, "Tenants.RemovePrincipal", tenants_pb2.RemoveTenantPrincipalRequest(**named))

        for stop, status in (("Suspend", "suspended"), ("Disable", "disabled")):
            request = tenants_pb2.StopTenantRequest(tenant="grpc-tenant", reason="not paid")
            stopped = await _method(client, f"Tenants.{stop}", request)
            assert (stopped.status, stopped.reason) == (status, "not paid")
        only: dict[str, Any] = {"tenant": "grpc-tenant"}
        activated = await _method(client, "Tenants.Activate", tenants_pb2.ActivateTenantRequest(**only))
        assert activated.status == "active"

        described = await _method(client, "Tenants.Describe", tenants_pb2.DescribeTenantRequest(**only))
        assert described == activated
        listed = await _method(client, "Tenants.List", tenants_pb2.ListTenantsRequest())
        assert activated in listed.tenants
        topics = await _method(client, "Tenants.ListTopics", tenants_pb2.ListTenantTopicsRequest(**only))
        usage = await _method(client, "Tenants.Usage", tenants_pb2.TenantUsageRequest(**only))
        stats = await _method(client, "Tenants.Stats", tenants_pb2.TenantStatsRequest(**only))
        assert (list(topics.topics), usage.topics, stats.messages) == ([], 0, 0)
        assert dict(usage.limits) == dict(changed.limits)
        await _method(client, "Tenants.Delete", tenants_pb2.DeleteTenantRequest(**only))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await _method(client, "Tenants.Describe", tenants_pb2.DescribeTenantRequest(**only))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_cluster_is_changed(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        new = admin_pb2.CreateTopicRequest(name="moved-over-grpc", partitions=1)
        await _method(client, "Admin.CreateTopic", new)
        node = (await _method(client, "Admin.ClusterStatus", admin_pb2.ClusterStatusRequest())).node_id
        partition: dict[str, Any] = {"topic": "moved-over-grpc", "partition": 0}

        throttle = admin_pb2.ReassignmentThrottle(bytes_per_second=2**40)
        assert await _method(client, "Admin.SetReassignmentThrottle", throttle) == throttle
        no_throttle = admin_pb2.ReassignmentThrottle()
        assert await _method(client, "Admin.SetReassignmentThrottle", no_throttle) == no_throttle

        for replicas, outcome in (([node], ""), ([node, 77], "77"), ([], "")):
            wanted = admin_pb2.WantedReplicas(replicas=replicas, **partition)
            moved = await _method(
                client,
                "Admin.ReassignPartitions",
                admin_pb2.ReassignPartitionsRequest(partitions=[wanted]),
            )
            (result,) = moved.partitions
            assert result.topic == "moved-over-grpc"
            assert outcome in result.error
            assert result.HasField("error") == (replicas != [node])

        request = admin_pb2.ElectLeadersRequest(
            kind=admin_pb2.ELECTION_KIND_PREFERRED, partitions=[admin_pb2.ElectedPartition(**partition)]
        )
        elected = await _method(client, "Admin.ElectLeaders", request)
        (refused_one,) = elected.partitions
        assert refused_one.error == f"broker {node} leads the partition already"
        level = await _method(client, "Admin.UpgradeCluster", admin_pb2.UpgradeClusterRequest(dry_run=True))
        assert level.before == level.level <= level.supported
        cancelled = await _method(client, "Admin.CancelDrain", admin_pb2.CancelDrainRequest(node=node))
        assert (cancelled.node_id, cancelled.draining) == (node, False)
        for method, refused in (
            ("Admin.DrainNode", admin_pb2.DrainNodeRequest(node=77, leaders_only=True)),
            ("Admin.RemoveNode", admin_pb2.RemoveNodeRequest(node=77)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _method(client, method, refused)
            assert "77" in refusal(raised.value).message


async def test_history_messages_pipelines_and_traces_are_shown(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        records = [messages_pb2.NewRecord(key=key, value=b"\xff", partition=0) for key in (b"a", b"b", b"a")]
        await _send(client, "found-over-grpc", *records)
        request = admin_pb2.FindMessagesRequest(topic="found-over-grpc", key=b"a", limit=1)
        found = await _method(client, "Admin.FindMessages", request)
        assert [(each.offset, each.key, each.value) for each in found.messages] == [(0, b"a", b"\xff")]
        history = await _method(client, "Admin.History", admin_pb2.HistoryRequest(points=10))
        assert history.interval_ms > 0
        assert {len(each.values) for each in history.series} <= {len(history.times)}
        assert await _method(client, "Admin.ListPipelines", admin_pb2.ListPipelinesRequest())
        stats = await _method(client, "Traces.Stats", traces_pb2.TraceStatsRequest())
        assert stats.enabled


def test_unknown_numbers_of_a_series_are_nan() -> None:
    answer = admin_pb2.HistoryResponse()
    series = [{"measure": "lag", "values": [1.5, None]}]
    fill(answer, {"interval_ms": 1, "times": [1, 2], "series": series, "omitted": 0}, camel=False)
    first, second = answer.series[0].values
    assert first == 1.5
    assert isnan(second)


async def test_numbers_beyond_the_precision_of_doubles_stay_exact(broker: Broker) -> None:
    large = 2**53 + 1
    async with connected(broker.grpc_address) as client:
        await _send(client, "large-numbers", messages_pb2.NewRecord(value=b"1"))
        commit = groups_pb2.CommitGroupOffsetsRequest(
            group="large", offsets=[groups_pb2.NewOffset(topic="large-numbers", partition=0, offset=large)]
        )
        results = await _method(client, "Groups.CommitOffsets", commit)
        assert [each.offset for each in results.offsets] == [large]


async def test_calls_are_counted_with_the_requests_of_their_routes(broker: Broker) -> None:
    http_url = f"http://{broker.http_address}"
    async with connected(broker.grpc_address) as client, httpx.AsyncClient(base_url=http_url) as http:

        async def requests() -> int:
            found: int = (await http.get("/stats", timeout=60)).json()["requests"]
            return found

        call = client.unary(
            "/alpacamq.v1.Admin/ListTopics", admin_pb2.ListTopicsRequest, admin_pb2.ListTopicsResponse
        )
        before = await requests()
        await call(admin_pb2.ListTopicsRequest())
        assert await requests() == before + 2  # and the request about this
