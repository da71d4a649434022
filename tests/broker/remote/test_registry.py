"""The schema registry through any broker of a cluster."""

from pathlib import Path

import pytest

from alpacamq.model.topics import SCHEMAS_TOPIC
from alpacamq.registry.errors import IncompatibleSchema, SubjectSoftDeleted
from alpacamq.registry.messages import (
    CheckCompatibility,
    DeleteSubject,
    Draft,
    GetById,
    ListVersions,
    Register,
)
from alpacamq.registry.schema import InvalidSchema
from tests.registry.toy_language import teach

from .three_brokers import three_brokers


def draft(subject: str, text: str) -> Register:
    return Register(subject=subject, draft=Draft(text=text))


async def test_the_registry_is_used_through_any_broker_and_survives_its_leader(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        for broker in cluster.brokers.values():
            teach(broker.registry)
        found = [
            await broker.registry.register(draft("one", text))
            for broker, text in zip(cluster.brokers.values(), ("a", "a,b?", "a,b?,c?"), strict=True)
        ]
        assert [(each.id, each.version) for each in found] == [(1, 1), (2, 2), (3, 3)]
        await cluster.led(SCHEMAS_TOPIC)
        other = cluster.follower_of(SCHEMAS_TOPIC).registry
        with pytest.raises(InvalidSchema, match="column 2"):
            await other.register(draft("one", "a!"))
        with pytest.raises(IncompatibleSchema, match="field 'd' has no default") as refused:
            await other.register(draft("one", "d"))
        assert [reason.path for reason in refused.value.reasons] == ["d"]
        check = CheckCompatibility(subject="one", draft=Draft(text="d"))
        assert [reason.path for reason in (await other.check_compatibility(check)).reasons] == ["d"]
        await other.register(draft("two", "x"))
        await other.ask(DeleteSubject(subject="two"))
        with pytest.raises(SubjectSoftDeleted):
            await other.ask(DeleteSubject(subject="two"))

        gone = cluster.leader_id(SCHEMAS_TOPIC)
        await cluster.kill(gone)
        for broker in cluster.brokers.values():
            assert await broker.registry.ask(ListVersions(subject="one")) == (1, 2, 3)
            assert await broker.registry.ask(GetById(id=2)) == found[1]
        last = await cluster.any.registry.register(draft("one", "a,e?"))
        assert (last.id, last.version) == (5, 4)
