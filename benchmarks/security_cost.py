"""What do access rules and quotas cost: the broker's processor time with them, as a multiple of that without?

Two brokers do the same work in turns, one of them with ten thousand rules, of which a few are about the
client and its topic, and with quotas that the client does not reach. The client does not log in, so that
both are sent the same requests: a login costs a connection some microseconds, once. Processor time is
compared pair by pair.
"""

import os
from pathlib import Path

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    create_acls,
)
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.quotas import USER, EntityPart, set_quotas

from .report import OURS, Floor, Report
from .server_cost import COST, Sample, Work, batch_load, batches, middle_half, sample, small
from .servers import AlpacaMQ, Server
from .session import Session

OTHERS = 10_000
AT_ONCE = 1000
FLOOR = Floor(at_most=1.03)
RATIO = "times the CPU without access rules and quotas"
ANONYMOUS = "User:ANONYMOUS"
QUOTAS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
PASSWORD = "of the benchmark"  # noqa: S105 - it opens nothing


def run(session: Session, report: Report) -> None:
    users = session.new_directory()
    users.mkdir(parents=True, exist_ok=True)
    secured = AlpacaMQ(f"{OTHERS:,} access rules", _settings(users / "users"))
    with session.server(AlpacaMQ()) as open_server, session.server(secured) as server:
        _create_rules(server)
        for case, work in _cases(session).items():
            _compare(session, report, case, work, server, open_server)


def _settings(users: Path) -> dict[str, str]:
    users.write_text(f"admin:{PASSWORD}\n")
    users.chmod(0o600)
    return {
        "ALPACAMQ_SECURITY_ACLS": "true",
        "ALPACAMQ_SECURITY_SUPER_USERS": "User:admin",
        "ALPACAMQ_SECURITY_USERS_FILE": os.fspath(users),
    }


def _create_rules(server: Server) -> None:
    rules = [
        Acl(
            ResourceType.TOPIC,
            f"other-{number}",
            PatternType.LITERAL if number % 2 else PatternType.PREFIXED,
            f"User:{number % 100}",
            "*",
            Operation.WRITE,
            Permission.ALLOW,
        )
        for number in range(OTHERS)
    ]
    allowed = (
        (ResourceType.TOPIC, "sample-", PatternType.PREFIXED),
        (ResourceType.GROUP, "*", PatternType.LITERAL),
        (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL),
    )
    rules += [
        Acl(kind, name, pattern, ANONYMOUS, "*", Operation.ALL, Permission.ALLOW)
        for kind, name, pattern in allowed
    ]
    with Cluster(parse_address(server.address), login=Login(user="admin", password=PASSWORD)) as cluster:
        for start in range(0, len(rules), AT_ONCE):
            create_acls(cluster, rules[start : start + AT_ONCE])
        set_quotas(cluster, (EntityPart(USER, None),), QUOTAS)


def _cases(session: Session) -> dict[str, Work]:
    client = session.clients[-1]

    def fetched(server: Server, topic: str) -> tuple[int, float]:
        load = batch_load(session, topic)
        client.produce(server.address, load, "all")
        return load.count, client.fetch(server.address, load)

    return {
        "one message a request, pipelined on 4 connections": small(session),
        f"batches, produced by {client.name}": batches(session),
        f"batches, produced and fetched by {client.name}": fetched,
    }


def _compare(
    session: Session, report: Report, case: str, work: Work, with_rules: Server, off: Server
) -> None:
    pairs: list[tuple[Sample, Sample]] = []
    for number in range(session.scaled(12, 4) + 1):
        order = (with_rules, off) if number % 2 else (off, with_rules)
        taken = {each.name: sample(session, each, work, f"sample-{number}") for each in order}
        if number:  # the first round warms up
            pairs.append((taken[with_rules.name], taken[off.name]))
    for name, samples in ((with_rules.name, [a for a, _ in pairs]), (OURS, [b for _, b in pairs])):
        costs = [each.cost_s for each in samples]
        report(case=case, server=name, unit=COST, samples=costs, usages=[each.usage for each in samples])
        rates = [each.messages / each.seconds for each in samples]
        report(case=case, server=name, unit="messages/s", samples=rates)
    ratios = [a.cost_s / b.cost_s for a, b in pairs]
    report(case=case, server=with_rules.name, unit=RATIO, samples=middle_half(ratios), floor=FLOOR)
