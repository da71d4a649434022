"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.topics import edit_list
from alpacamq.coordinator.share.config import (
    GROUP_SETTINGS,
    ConfigureGroupRequest,
    DescribeGroupConfigRequest,
    GroupConfigReply,
)
from alpacamq.model.errors import AlpacaError, InvalidConfig, InvalidRequest
from alpacamq.model.topics import SETTINGS, ConfigKind, Topic, check_setting
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class Resource(IntEnum):
    """Types of configurable resources."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Sources of the value of a setting."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5
    GROUP = 8


class Operation(IntEnum):
    """Operations of an incremental change."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


TYPES: Mapping[ConfigKind, int] = {
    ConfigKind.BOOLEAN: 1,
    ConfigKind.STRING: 2,
    ConfigKind.INT: 3,
    ConfigKind.LONG: 5,
    ConfigKind.DOUBLE: 6,
    ConfigKind.LIST: 7,
}

# Far more than exist; each named setting costs time.
MAX_SETTINGS = 1000


def check_settings_count(settings: Sequence[object]) -> None:
    """Raise InvalidRequest for too many settings of one resource."""
    if len(settings) > MAX_SETTINGS:
        raise InvalidRequest(f"a request must not name more than {MAX_SETTINGS} settings of one resource")


def source_of(backend: Backend, topic: Topic, name: str) -> Source:
    """Return the source of the value of a topic's setting."""
    if name in topic.overrides:
        return Source.TOPIC
    return Source.BROKER_FILE if name in backend.broker.topics.defaults else Source.DEFAULT


async def describe_configs(
    backend: Backend, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    results = []
    seen: set[tuple[int, str]] = set()
    for resource in request.resources:
        await call.pause()
        if (resource.resource_type, resource.resource_name) not in seen:
            # Without duplicates: a response is much larger than its request.
            seen.add((resource.resource_type, resource.resource_name))
            results.append(await _result(backend, request, resource))
    return DescribeConfigsResponse(results=results)


async def alter_configs(backend: Backend, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    responses = []
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = _replace_group(backend, resource, request.validate_only)
        else:
            change = _configure(
                backend, resource, partial(_replaced, resource.configs), request.validate_only
            )
        responses.append(await _altered(resource, change))
    return AlterConfigsResponse(responses=responses)


async def incremental_alter_configs(
    backend: Backend, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    responses = []
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = _configure_group(backend, resource, request.validate_only)
        else:
            changed = partial(_changed, backend, resource.configs)
            change = _configure(backend, resource, changed, request.validate_only)
        responses.append(await _altered(resource, change))
    return IncrementalAlterConfigsResponse(responses=responses)


async def list_config_resources(
    backend: Backend, request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
    """List what can be configured; of groups, those that are."""
    # Version 0 lists the subscriptions to metrics of clients only.
    wanted = set(request.resource_types or Resource) if call.version else {Resource.CLIENT_METRICS}
    if not wanted <= set(Resource):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[tuple[Resource, str]] = []
    if Resource.TOPIC in wanted:
        found += [(Resource.TOPIC, name) for name in backend.broker.topics.image.topics]
    for kind in (Resource.BROKER, Resource.BROKER_LOGGER):
        if kind in wanted:
            found.append((kind, str(backend.node_id)))
    if Resource.GROUP in wanted:
        try:
            found += [(Resource.GROUP, name) for name in await backend.broker.groups.configured()]
        except AlpacaError as error:
            return ListConfigResourcesResponse(error_code=code_of(error))
    resources = []
    for kind, name in found:
        await call.pause()
        resources.append(ConfigResource(resource_name=name, resource_type=kind))
    return ListConfigResourcesResponse(config_resources=resources)


async def _result(
    backend: Backend, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        described = await _described(backend, request, resource)
    except AlpacaError as error:
        return DescribeConfigsResult(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return DescribeConfigsResult(resource_type=kind, resource_name=name, configs=described)


async def _altered(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, change: Coroutine[Any, Any, None]
) -> AlterConfigsResourceResponse:
    """Apply a change and return its result."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        await change
    except AlpacaError as error:
        return AlterConfigsResourceResponse(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return AlterConfigsResourceResponse(resource_type=kind, resource_name=name)


async def _configure(
    backend: Backend,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[Topic], Mapping[str, str]],
    dry_run: bool,
) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.BROKER:
        raise InvalidRequest("broker settings are read-only; change the configuration file")
    if kind != Resource.TOPIC:
        raise InvalidRequest(
            f"unsupported resource type {kind}: only topics (2) and groups (32) are supported"
        )
    check_settings_count(resource.configs)
    backend.broker.topics.image.topic(name)  # such names usually do not exist
    await backend.broker.topics.configure(name, change, dry_run=dry_run)


async def _replace_group(backend: Backend, resource: AlterConfigsResource, dry_run: bool) -> None:
    check_settings_count(resource.configs)
    overrides = _given(resource.configs)
    await configure_group(backend, resource.resource_name, overrides, replace_all=True, dry_run=dry_run)


async def _configure_group(
    backend: Backend, resource: IncrementalAlterConfigsResource, dry_run: bool
) -> None:
    check_settings_count(resource.configs)
    overrides = changed_settings(resource.configs)
    await configure_group(backend, resource.resource_name, overrides, replace_all=False, dry_run=dry_run)


def _given(configs: Sequence[AlterableConfig]) -> dict[str, str]:
    return {config.name: config.value for config in configs if config.value is not None}


def _replaced(configs: Sequence[AlterableConfig], _topic: Topic) -> Mapping[str, str]:
    return _given(configs)


def _changed(
    backend: Backend, changes: Sequence[IncrementallyAlterableConfig], topic: Topic
) -> Mapping[str, str]:
    overrides = dict(topic.overrides)
    for change in changes:
        name = change.name
        if change.config_operation == Operation.DELETE:
            if name not in SETTINGS:
                check_setting(name, "")
            overrides.pop(name, None)
            continue
        if change.value is None:
            raise InvalidConfig(f"{name} has no value")
        if change.config_operation == Operation.SET:
            overrides[name] = change.value
            continue
        if change.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
            raise InvalidRequest(f"unknown operation {change.config_operation}")
        if (setting := SETTINGS.get(name)) is None or setting.kind is not ConfigKind.LIST:
            raise InvalidConfig(f"{name} is not a list: APPEND and SUBTRACT are not supported")
        current = overrides.get(name, backend.broker.topics.defaults.get(name, setting.text(setting.default)))
        if change.config_operation == Operation.APPEND:
            overrides[name] = edit_list(topic.name, name, current, added=change.value)
        else:
            overrides[name] = edit_list(topic.name, name, current, removed=change.value)
    return overrides


async def _described(
    backend: Backend, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == Resource.TOPIC:
        described = _topic_settings(
            backend, request, backend.broker.topics.image.topic(resource.resource_name)
        )
    elif resource.resource_type == Resource.BROKER:
        described = _broker_settings(backend, resource.resource_name)
    elif resource.resource_type == Resource.GROUP:
        described = await group_settings(backend, request, resource.resource_name)
    else:
        raise InvalidRequest(f"unsupported resource type {resource.resource_type}")
    if resource.configuration_keys is None:
        return described
    check_settings_count(resource.configuration_keys)
    keys = set(resource.configuration_keys)
    return [setting for setting in described if setting.name in keys]


def _topic_settings(
    backend: Backend, request: DescribeConfigsRequest, topic: Topic
) -> list[DescribeConfigsResourceResult]:
    config = backend.broker.topics.config_of(topic)
    described = []
    for name, setting in SETTINGS.items():
        value = setting.text(getattr(config, name.replace(".", "_")))
        source = source_of(backend, topic, name)
        synonyms = []
        if request.include_synonyms:
            values = {
                Source.TOPIC: topic.overrides.get(name),
                Source.BROKER_FILE: backend.broker.topics.defaults.get(name),
                Source.DEFAULT: setting.text(setting.default),
            }
            synonyms = [
                DescribeConfigsSynonym(name=name, value=text, source=origin)
                for origin, text in values.items()
                if text is not None
            ]
        described.append(
            DescribeConfigsResourceResult(
                name=name,
                value=value,
                config_source=source,
                synonyms=synonyms,
                config_type=TYPES[setting.kind],
                documentation=setting.doc if request.include_documentation else None,
            )
        )
    return described


def _broker_settings(backend: Backend, name: str) -> list[DescribeConfigsResourceResult]:
    """Return the broker settings that tools read, under Kafka's names; all are read-only."""
    settings = backend.broker.settings
    if name not in ("", str(backend.node_id)):
        raise InvalidRequest(f"this is broker {backend.node_id}, not {name!r}")
    values = {
        "advertised.listeners": f"PLAINTEXT://{backend.host}:{backend.port}",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": str(backend.node_id),
        "default.replication.factor": "1",
        "log.dirs": str(settings.data_directory.absolute()),
        "num.partitions": str(settings.limits.default_partitions),
    }
    return [
        DescribeConfigsResourceResult(
            name=key,
            value=value,
            read_only=True,
            config_source=Source.BROKER_FILE,
            config_type=TYPES[ConfigKind.STRING],
        )
        for key, value in values.items()
    ]


async def group_settings(
    backend: Backend, request: DescribeConfigsRequest, group: str
) -> list[DescribeConfigsResourceResult]:
    """Return every group setting with its value."""
    reply: GroupConfigReply = await backend.broker.groups.ask(DescribeGroupConfigRequest(group=group))
    described = []
    for name, setting in GROUP_SETTINGS.items():
        values = {
            Source.GROUP: reply.overrides.get(name),
            Source.DEFAULT: reply.default(name),
        }
        synonyms = [
            DescribeConfigsSynonym(name=name, value=text, source=origin)
            for origin, text in values.items()
            if text is not None
        ]
        described.append(
            DescribeConfigsResourceResult(
                name=name,
                value=reply.value(name),
                config_source=synonyms[0].source,
                synonyms=synonyms if request.include_synonyms else [],
                config_type=TYPES[ConfigKind.INT if setting.is_number else ConfigKind.STRING],
                documentation=setting.doc if request.include_documentation else None,
            )
        )
    return described


def changed_settings(changes: Sequence[IncrementallyAlterableConfig]) -> dict[str, str | None]:
    """Return the settings that an incremental change sets, and those that it removes."""
    overrides: dict[str, str | None] = {}
    for change in changes:
        if change.config_operation == Operation.DELETE:
            overrides[change.name] = None
        elif change.config_operation != Operation.SET:
            raise InvalidRequest(f"{change.name} is not a list: only SET and DELETE are supported")
        elif change.value is None:
            raise InvalidConfig(f"{change.name} has no value")
        else:
            overrides[change.name] = change.value
    return overrides


async def configure_group(
    backend: Backend, group: str, overrides: Mapping[str, str | None], *, replace_all: bool, dry_run: bool
) -> None:
    """Change the settings of a group."""
    asked = ConfigureGroupRequest(group=group, overrides=overrides, replace_all=replace_all, dry_run=dry_run)
    await backend.broker.groups.ask(asked)
