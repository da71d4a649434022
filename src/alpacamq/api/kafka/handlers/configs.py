"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

from alpacamq.api.kafka.brokers import learn_topics
from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.broker_config import (
    ALL_BROKERS,
    BROKER_NAMES,
    BROKER_SETTINGS,
    OWN_SETTINGS,
    STATIC_SETTINGS,
    TOPIC_NAMES,
    check_is_dynamic,
    usable,
)
from alpacamq.cluster.placement import default_replication_factor
from alpacamq.cluster.topics import BY_DEFAULT, MIN_ISR, edit_list
from alpacamq.coordinator.share.config import (
    GROUP_SETTINGS,
    ConfigureGroupRequest,
    DescribeGroupConfigRequest,
    GroupConfigReply,
)
from alpacamq.model.errors import AlpacaError, InvalidConfig, InvalidRequest
from alpacamq.model.topics import SETTINGS, ConfigKind, Setting, Topic, check_setting
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
from alpacamq.security import acls


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
    BROKER = 2
    ALL_BROKERS = 3
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
    return next(iter(_defaults_of(backend, name)))


def _defaults_of(backend: Backend, name: str) -> dict[Source, str]:
    """Return the defaults of a topic setting by their sources; the first is in force."""
    defaults = backend.broker.topics.defaults
    by_source = {
        Source.BROKER: defaults.of_broker,
        Source.ALL_BROKERS: defaults.of_all_brokers,
        Source.BROKER_FILE: defaults.of_file,
    }
    found = {source: values[name] for source, values in by_source.items() if name in values}
    found[Source.DEFAULT] = SETTINGS[name].text(SETTINGS[name].default)
    return found


async def describe_configs(
    backend: Backend, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    results = []
    seen: set[tuple[int, str]] = set()
    await _learn_topics(backend, request.resources)
    for resource in request.resources:
        await call.pause()
        if (resource.resource_type, resource.resource_name) not in seen:
            # Without duplicates: a response is much larger than its request.
            seen.add((resource.resource_type, resource.resource_name))
            results.append(await _result(backend, request, resource, call))
    return DescribeConfigsResponse(results=results)


async def alter_configs(backend: Backend, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    responses = []
    await _learn_topics(backend, request.resources)
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = partial(_replace_group, backend, resource, request.validate_only)
        else:
            replaced = partial(_replaced, resource.configs)
            change = partial(_configure, backend, resource, replaced, request.validate_only)
        responses.append(await _altered(backend, resource, change, call))
    return AlterConfigsResponse(responses=responses)


async def incremental_alter_configs(
    backend: Backend, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    responses = []
    await _learn_topics(backend, request.resources)
    for resource in request.resources:
        await call.pause()
        if resource.resource_type == Resource.GROUP:
            change = partial(_configure_group, backend, resource, request.validate_only)
        else:
            changed = partial(_changed, resource.configs)
            change = partial(_configure, backend, resource, changed, request.validate_only)
        responses.append(await _altered(backend, resource, change, call))
    return IncrementalAlterConfigsResponse(responses=responses)


async def list_config_resources(
    backend: Backend, request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
    """List what can be configured; of groups, those that are."""
    try:
        backend.broker.access.check_cluster(call.caller, acls.Operation.DESCRIBE_CONFIGS)
    except AlpacaError as error:
        return ListConfigResourcesResponse(error_code=code_of(error))
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


async def _learn_topics(
    backend: Backend,
    resources: Iterable[DescribeConfigsResource | AlterConfigsResource | IncrementalAlterConfigsResource],
) -> None:
    await learn_topics(
        backend, (each.resource_name for each in resources if each.resource_type == Resource.TOPIC)
    )


async def _result(
    backend: Backend, request: DescribeConfigsRequest, resource: DescribeConfigsResource, call: Call
) -> DescribeConfigsResult:
    kind, name = resource.resource_type, resource.resource_name
    try:
        _check_right(backend, call, acls.Operation.DESCRIBE_CONFIGS, kind, name)
        described = await _described(backend, request, resource)
    except AlpacaError as error:
        return DescribeConfigsResult(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return DescribeConfigsResult(resource_type=kind, resource_name=name, configs=described)


def _check_right(backend: Backend, call: Call, operation: acls.Operation, kind: int, name: str) -> None:
    """Raise unless the client may do something to the settings of a resource."""
    access = backend.broker.access
    if kind == Resource.TOPIC:
        access.check_topic(call.caller, operation, name)
    elif kind == Resource.GROUP:
        access.check_group(call.caller, operation, name)
    else:
        access.check_cluster(call.caller, operation)


async def _altered(
    backend: Backend,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: Callable[[], Coroutine[Any, Any, None]],
    call: Call,
) -> AlterConfigsResourceResponse:
    """Apply a change and return its result."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        _check_right(backend, call, acls.Operation.ALTER_CONFIGS, kind, name)
        await change()
    except AlpacaError as error:
        return AlterConfigsResourceResponse(
            resource_type=kind, resource_name=name, error_code=code_of(error), error_message=text_of(error)
        )
    return AlterConfigsResourceResponse(resource_type=kind, resource_name=name)


async def _configure(
    backend: Backend,
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
    change: "Change",
    dry_run: bool,
) -> None:
    kind, name = resource.resource_type, resource.resource_name
    topics = backend.broker.topics
    if kind == Resource.BROKER:
        _check_broker(backend, name)
        check_settings_count(resource.configs)
        settings = _BrokerSettings(backend, name)
        await topics.configure_broker(name, partial(change, settings), dry_run=dry_run)
        return
    if kind != Resource.TOPIC:
        raise InvalidRequest(
            f"unsupported resource type {kind}: only topics (2), brokers (4) and groups (32) are supported"
        )
    check_settings_count(resource.configs)
    topics.image.topic(name)  # such names usually do not exist
    await topics.configure(
        name, lambda topic: change(_TopicSettings(backend), topic.overrides), dry_run=dry_run
    )


def _check_broker(backend: Backend, name: str) -> None:
    if name not in (ALL_BROKERS, str(backend.node_id)):
        raise InvalidRequest(f"this is broker {backend.node_id}, not {name!r}")


class _Settings(Protocol):
    """The settings of one kind of resource, as an incremental change needs them."""

    def find(self, name: str) -> Setting | None: ...
    def check_name(self, name: str) -> None: ...
    def default(self, name: str) -> str: ...


class _TopicSettings:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def find(self, name: str) -> Setting | None:
        return SETTINGS.get(name)

    def check_name(self, name: str) -> None:
        if name not in SETTINGS:
            check_setting(name, "")

    def default(self, name: str) -> str:
        return next(iter(_defaults_of(self._backend, name).values()))


class _BrokerSettings:
    def __init__(self, backend: Backend, resource: str) -> None:
        self._backend = backend
        # A default of all brokers does not depend on the settings of this one.
        self._above = (Source.BROKER, Source.ALL_BROKERS) if resource == ALL_BROKERS else (Source.BROKER,)

    def find(self, name: str) -> Setting | None:
        return BROKER_SETTINGS.get(name)

    def check_name(self, name: str) -> None:
        # As in Kafka, removing a setting that can never be set has no effect.
        if name not in STATIC_SETTINGS:
            check_is_dynamic(name)

    def default(self, name: str) -> str:
        defaults = _defaults_of(self._backend, TOPIC_NAMES[name])
        return next(text for source, text in defaults.items() if source not in self._above)


# Returns the new overrides of a resource for its current ones.
Change = Callable[[_Settings, Mapping[str, str]], Mapping[str, str]]


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


def _replaced(
    configs: Sequence[AlterableConfig], _settings: _Settings, _before: Mapping[str, str]
) -> Mapping[str, str]:
    return _given(configs)


def _changed(
    changes: Sequence[IncrementallyAlterableConfig], settings: _Settings, before: Mapping[str, str]
) -> Mapping[str, str]:
    overrides = dict(before)
    for change in changes:
        name = change.name
        if change.config_operation == Operation.DELETE:
            if name not in overrides:
                settings.check_name(name)
            overrides.pop(name, None)
            continue
        if change.value is None:
            raise InvalidConfig(f"{name} has no value")
        if change.config_operation == Operation.SET:
            overrides[name] = change.value
            continue
        if change.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
            raise InvalidRequest(f"unknown operation {change.config_operation}")
        if (setting := settings.find(name)) is None or setting.kind is not ConfigKind.LIST:
            raise InvalidConfig(f"{name} is not a list: APPEND and SUBTRACT are not supported")
        current = overrides[name] if name in overrides else settings.default(name)
        edited = {"added" if change.config_operation == Operation.APPEND else "removed": change.value}
        overrides[name] = edit_list(name, current, **edited, may_be_empty=bool(setting.pattern))
    return overrides


async def _described(
    backend: Backend, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == Resource.TOPIC:
        described = _topic_settings(
            backend, request, backend.broker.topics.image.topic(resource.resource_name)
        )
    elif resource.resource_type == Resource.BROKER:
        _check_broker(backend, resource.resource_name)
        if resource.resource_name == ALL_BROKERS:
            described = _settings_of_all_brokers(backend, request)
        else:
            described = _broker_settings(backend, request)
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
    described = []
    for name, value in backend.broker.topics.settings_of(topic).items():
        setting, defaults = SETTINGS[name], _defaults_of(backend, name)
        if list(defaults) == [Source.DEFAULT] and name not in topic.overrides:
            # That of min.insync.replicas depends on the number of replicas.
            defaults[Source.DEFAULT] = value
        synonyms = _synonyms(BROKER_NAMES.get(name, name), defaults)
        if name in topic.overrides:
            own = DescribeConfigsSynonym(name=name, value=topic.overrides[name], source=Source.TOPIC)
            synonyms.insert(0, own)
        described.append(_entry(request, name, setting, value, synonyms))
    return described


def _entry(
    request: DescribeConfigsRequest,
    name: str,
    setting: Setting,
    value: str,
    synonyms: list[DescribeConfigsSynonym],
    *,
    read_only: bool = False,
) -> DescribeConfigsResourceResult:
    """Describe a setting; the first synonym is in force."""
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=TYPES[setting.kind],
        documentation=setting.doc if request.include_documentation else None,
    )


def _synonyms(name: str, values: Mapping[Source, str]) -> list[DescribeConfigsSynonym]:
    return [DescribeConfigsSynonym(name=name, value=text, source=source) for source, text in values.items()]


def _settings_of_all_brokers(
    backend: Backend, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Return the settings that were set for all brokers at run time; as in Kafka, no others."""
    overrides = usable(backend.broker.topics.image.broker_overrides(ALL_BROKERS))
    return [
        _entry(request, name, BROKER_SETTINGS[name], text, _synonyms(name, {Source.ALL_BROKERS: text}))
        for name, text in sorted(overrides.items())
    ]


def _broker_settings(
    backend: Backend, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Return the settings that can be changed at run time, and read-only ones that tools read."""
    described = _static_settings(backend)
    for name, setting in BROKER_SETTINGS.items():
        values = (
            _values_of(backend, name) if name in OWN_SETTINGS else _defaults_of(backend, TOPIC_NAMES[name])
        )
        synonyms = _synonyms(name, values)
        # This one is set for all brokers: the controller must know it.
        read_only = name == MIN_ISR
        described.append(
            _entry(request, name, setting, synonyms[0].value or "", synonyms, read_only=read_only)
        )
    return described


def _values_of(backend: Backend, name: str) -> dict[Source, str]:
    """Return the values of a setting that is not a default of topics; the first is in force."""
    image = backend.broker.topics.image
    resources = {Source.BROKER: str(backend.node_id), Source.ALL_BROKERS: ALL_BROKERS}
    found = {
        source: overrides[name]
        for source, resource in resources.items()
        if name in (overrides := usable(image.broker_overrides(resource)))
    }
    found[Source.DEFAULT] = OWN_SETTINGS[name].text(OWN_SETTINGS[name].default)
    return found


def _static_settings(backend: Backend) -> list[DescribeConfigsResourceResult]:
    settings = backend.broker.settings
    factor = settings.controller.replication_factor
    if factor == BY_DEFAULT:
        factor = default_replication_factor(backend.broker.topics.image)
    values = {
        "advertised.listeners": f"PLAINTEXT://{backend.host}:{backend.port}",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": str(backend.node_id),
        "default.replication.factor": str(factor),
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
