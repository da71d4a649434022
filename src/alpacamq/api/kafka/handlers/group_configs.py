"""The settings of groups, as DescribeConfigs and the two ways of altering them see them."""

from collections.abc import Mapping, Sequence

from alpacamq.api.kafka.door import Door
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.share_config import (
    SHARE_SETTINGS,
    ConfigureGroupRequest,
    DescribeGroupConfigRequest,
    GroupConfigReply,
    ShareConfig,
)
from alpacamq.model.errors import InvalidConfig, InvalidRequest
from alpacamq.model.topics import ConfigKind
from alpacamq.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
    IncrementallyAlterableConfig,
)

from .asking import ask_group
from .config_words import TYPES, Operation, Source

_DEFAULTS = ShareConfig()


async def group_settings(
    door: Door, request: DescribeConfigsRequest, group: str
) -> list[DescribeConfigsResourceResult]:
    """Every setting a group can have, with the value it has."""
    reply: GroupConfigReply = await ask_group(
        door, GroupCoordinator.describe_config, DescribeGroupConfigRequest(group=group)
    )
    described = []
    for name, setting in SHARE_SETTINGS.items():
        values = {
            Source.GROUP: reply.overrides.get(name),
            Source.DEFAULT: str(getattr(_DEFAULTS, setting.field)),
        }
        synonyms = [
            DescribeConfigsSynonym(name=name, value=text, source=origin)
            for origin, text in values.items()
            if text is not None
        ]
        described.append(
            DescribeConfigsResourceResult(
                name=name,
                value=str(getattr(reply.config, setting.field)),
                config_source=synonyms[0].source,
                synonyms=synonyms if request.include_synonyms else [],
                config_type=TYPES[ConfigKind.INT if setting.is_number else ConfigKind.STRING],
                documentation=setting.doc if request.include_documentation else None,
            )
        )
    return described


def changed_settings(changes: Sequence[IncrementallyAlterableConfig]) -> dict[str, str | None]:
    """What an incremental change sets, and what it takes away."""
    overrides: dict[str, str | None] = {}
    for change in changes:
        if change.config_operation == Operation.DELETE:
            overrides[change.name] = None
        elif change.config_operation != Operation.SET:
            raise InvalidRequest(f"{change.name} is not a list, so it can only be set or deleted")
        elif change.value is None:
            raise InvalidConfig(f"{change.name} has no value")
        else:
            overrides[change.name] = change.value
    return overrides


async def configure_group(
    door: Door, group: str, overrides: Mapping[str, str | None], *, replace_all: bool, dry_run: bool
) -> None:
    """Give a group settings of its own."""
    asked = ConfigureGroupRequest(group=group, overrides=overrides, replace_all=replace_all, dry_run=dry_run)
    await ask_group(door, GroupCoordinator.configure, asked)
