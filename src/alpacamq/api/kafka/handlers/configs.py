"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from alpacamq.api.kafka.door import Call, Door
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.topics import with_words
from alpacamq.model.errors import AlpacaError, InvalidConfig, InvalidRequest
from alpacamq.model.topics import SETTINGS, ConfigKind, Topic, check_setting
from alpacamq.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
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
)

from .config_words import TYPES, Operation, Resource, Source, check_settings_count
from .group_configs import changed_settings, configure_group, group_settings


def source_of(door: Door, topic: Topic, name: str) -> Source:
    """Who set the value that a topic's setting has."""
    if name in topic.overrides:
        return Source.TOPIC
    return Source.BROKER_FILE if name in door.broker.topics.defaults else Source.DEFAULT


async def describe_configs(
    door: Door, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    results = []
    seen: set[tuple[int, str]] = set()
    for resource in request.resources:
        await call.pause()
        if (resource.resource_type, resource.resource_name) not in seen:
            # Each once, however often it is named: an answer is much larger than its question.
            seen.add((resource.resource_type, resource.resource_name))
            results.append(await _result(door, request, resource))
    return DescribeConfigsResponse(results=results)


async def alter_configs(door: Door, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    responses = []
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = _replace_group(door, resource, request.validate_only)
        else:
            change = _configure(door, resource, partial(_replaced, resource.configs), request.validate_only)
        responses.append(await _altered(resource, change))
    return AlterConfigsResponse(responses=responses)


async def incremental_alter_configs(
    door: Door, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    responses = []
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = _configure_group(door, resource, request.validate_only)
        else:
            changed = partial(_changed, door, resource.configs)
            change = _configure(door, resource, changed, request.validate_only)
        responses.append(await _altered(resource, change))
    return IncrementalAlterConfigsResponse(responses=responses)


async def _result(
    door: Door, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        described = await _described(door, request, resource)
    except AlpacaError as error:
        return DescribeConfigsResult(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return DescribeConfigsResult(resource_type=kind, resource_name=name, configs=described)


async def _altered(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource, change: Coroutine[Any, Any, None]
) -> AlterConfigsResourceResponse:
    """What becomes of a change."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        await change
    except AlpacaError as error:
        return AlterConfigsResourceResponse(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return AlterConfigsResourceResponse(resource_type=kind, resource_name=name)


async def _configure(
    door: Door,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[Topic], Mapping[str, str]],
    dry_run: bool,
) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.BROKER:
        raise InvalidRequest("broker settings are changed in its configuration file, not by request")
    if kind != Resource.TOPIC:
        raise InvalidRequest(
            f"resources of type {kind} have no settings here, only topics (2) and groups (32)"
        )
    check_settings_count(resource.configs)
    door.broker.topics.image.topic(name)  # most names that cannot be configured are no topic's
    await door.broker.topics.configure(name, change, dry_run=dry_run)


async def _replace_group(door: Door, resource: AlterConfigsResource, dry_run: bool) -> None:
    check_settings_count(resource.configs)
    overrides = _given(resource.configs)
    await configure_group(door, resource.resource_name, overrides, replace_all=True, dry_run=dry_run)


async def _configure_group(door: Door, resource: IncrementalAlterConfigsResource, dry_run: bool) -> None:
    check_settings_count(resource.configs)
    overrides = changed_settings(resource.configs)
    await configure_group(door, resource.resource_name, overrides, replace_all=False, dry_run=dry_run)


def _given(configs: Sequence[AlterableConfig]) -> dict[str, str]:
    return {config.name: config.value for config in configs if config.value is not None}


def _replaced(configs: Sequence[AlterableConfig], _topic: Topic) -> Mapping[str, str]:
    return _given(configs)


def _changed(door: Door, changes: Sequence[IncrementallyAlterableConfig], topic: Topic) -> Mapping[str, str]:
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
            raise InvalidRequest(f"there is no operation {change.config_operation} on settings")
        if (setting := SETTINGS.get(name)) is None or setting.kind is not ConfigKind.LIST:
            raise InvalidConfig(f"{name} is not a list, so nothing can be added to it or taken away")
        current = overrides.get(name, door.broker.topics.defaults.get(name, setting.text(setting.default)))
        if change.config_operation == Operation.APPEND:
            overrides[name] = with_words(topic.name, name, current, added=change.value)
        else:
            overrides[name] = with_words(topic.name, name, current, removed=change.value)
    return overrides


async def _described(
    door: Door, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == Resource.TOPIC:
        described = _topic_settings(door, request, door.broker.topics.image.topic(resource.resource_name))
    elif resource.resource_type == Resource.BROKER:
        described = _broker_settings(door, resource.resource_name)
    elif resource.resource_type == Resource.GROUP:
        described = await group_settings(door, request, resource.resource_name)
    else:
        raise InvalidRequest(f"resources of type {resource.resource_type} have no settings here")
    if resource.configuration_keys is None:
        return described
    check_settings_count(resource.configuration_keys)
    keys = set(resource.configuration_keys)
    return [setting for setting in described if setting.name in keys]


def _topic_settings(
    door: Door, request: DescribeConfigsRequest, topic: Topic
) -> list[DescribeConfigsResourceResult]:
    config = door.broker.topics.config_of(topic)
    described = []
    for name, setting in SETTINGS.items():
        value = setting.text(getattr(config, name.replace(".", "_")))
        source = source_of(door, topic, name)
        synonyms = []
        if request.include_synonyms:
            values = {
                Source.TOPIC: topic.overrides.get(name),
                Source.BROKER_FILE: door.broker.topics.defaults.get(name),
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


def _broker_settings(door: Door, name: str) -> list[DescribeConfigsResourceResult]:
    """What tools ask a broker for, under the names they use; all of it read-only."""
    settings = door.broker.settings
    if name not in ("", str(door.node_id)):
        raise InvalidRequest(f"this is broker {door.node_id}, not {name!r}")
    values = {
        "advertised.listeners": f"PLAINTEXT://{door.host}:{door.port}",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": str(door.node_id),
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
