"""How long does the broker take to load 10,000 access rules and 10,000 users, and to decide by them?

From a snapshot of the metadata, in this process: reading it, applying it and the first decision. And from the
log, with a restart: from the start of the process until one of the users has logged in and has been shown a
topic that a rule lets it see, less the same for a broker without rules and users, where an administrator
asks. Passwords are hashed once for many users: what is loaded is of the same size.
"""

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from alpacamq.broker.statemachine.snapshots import StateSnapshots, encode_block
from alpacamq.client.connect import parse_address
from alpacamq.client.errors import check
from alpacamq.client.kafka.access import DEFAULT_ITERATIONS, Mechanism, create_acls
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.topics import create_topic
from alpacamq.cluster.image import ClusterImage, acl_change, user_change
from alpacamq.log.disk import SystemDisk
from alpacamq.protocol.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from alpacamq.security.acls import Acl, Authorizer, Operation, PatternType, Permission, ResourceType
from alpacamq.security.scram import SALT_BYTES, credential_of, salted_password
from alpacamq.security.users import User

from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session

RULES = USERS = 10_000
AT_ONCE = 1000
TOPIC = "seen"
LOADED = Floor(at_most=2.0)
PASSWORD = "of the benchmark"  # noqa: S105 - it opens nothing
ADMIN = Login(user="admin", password=PASSWORD)
_SCRAM_SHA_512 = 2


def run(session: Session, report: Report) -> None:
    root = session.new_directory()
    root.mkdir(parents=True)
    broker = AlpacaMQ(OURS, _settings(root / "users"))
    try:
        for name in ("empty", "full"):
            server = broker.start(root / name)
            try:
                _create(server, RULES if name == "full" else 0)
                server.stop()
            finally:
                server.kill()
        one_user = Login(user=f"user-{USERS - 1}", password=PASSWORD, mechanism=Mechanism.SHA_512)
        starts: list[tuple[float, float]] = []
        firsts_ms: list[float] = []
        for _ in range(session.scaled(7, 2)):
            os.sync()
            session.settle()
            without_s, _ = _start(broker, root / "empty", ADMIN)
            with_s, first_s = _start(broker, root / "full", one_user)
            starts.append((with_s, without_s))
            firsts_ms.append(first_s * 1000)
        loaded_s = _load_snapshots(session, root / "snapshots")
    finally:
        shutil.rmtree(root)
    full = f"{RULES:,} rules and {USERS:,} users"
    case = f"{full}: a snapshot, to the first decision"
    report(case=case, server=OURS, unit="s", samples=loaded_s, floor=LOADED)
    for case, unit, samples in (
        (f"{full}: a restart, to the first decision", "s", [full_s for full_s, _ in starts]),
        ("none: a restart, to the first answer", "s", [empty_s for _, empty_s in starts]),
        (f"{full}: a restart, login and first decision", "ms", firsts_ms),
    ):
        report(case=case, server=OURS, unit=unit, samples=samples)
    added_s = [full_s - empty_s for full_s, empty_s in starts]
    case = f"{full}: a restart, added by them"
    report(case=case, server=OURS, unit="s", samples=added_s, floor=LOADED)


def _settings(users: Path) -> dict[str, str]:
    users.write_text(f"{ADMIN.user}:{PASSWORD}\n")
    users.chmod(0o600)
    return {
        "ALPACAMQ_SECURITY_ACLS": "true",
        "ALPACAMQ_SECURITY_AUTHENTICATION": "true",
        "ALPACAMQ_SECURITY_SUPER_USERS": "User:admin",
        "ALPACAMQ_SECURITY_USERS_FILE": os.fspath(users),
    }


def _create(server: Server, count: int) -> None:
    with Cluster(parse_address(server.address), login=ADMIN) as cluster:
        create_topic(cluster, TOPIC, partitions=1, replicas=1, settings={})
        rules = _rules(count)
        for start in range(0, count, AT_ONCE):
            create_acls(cluster, rules[start : start + AT_ONCE])
            _create_users(cluster, [f"user-{number}" for number in range(start, start + AT_ONCE)])


def _rules(count: int) -> list[Acl]:
    """Return rules about a topic each, of a user each; the last is about `TOPIC`."""
    return [
        Acl(
            ResourceType.TOPIC,
            TOPIC if number == count - 1 else f"topic-{number}",
            PatternType.LITERAL if number % 2 else PatternType.PREFIXED,
            f"User:user-{number}",
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        for number in range(count)
    ]


def _load_snapshots(session: Session, directory: Path) -> list[float]:
    directory.mkdir()
    snapshots = StateSnapshots(SystemDisk(), directory)
    salt = secrets.token_bytes(SALT_BYTES)
    hashed = salted_password(Mechanism.SHA_512, PASSWORD, salt, DEFAULT_ITERATIONS)
    credential = credential_of(Mechanism.SHA_512, hashed, salt, DEFAULT_ITERATIONS)
    users = (User(name=f"user-{n}", credentials={Mechanism.SHA_512: credential}) for n in range(USERS))
    changes = [*map(user_change, users), *map(acl_change, _rules(RULES))]
    blocks = [encode_block(changes[at : at + AT_ONCE]) for at in range(0, len(changes), AT_ONCE)]
    snapshots.write(1, 1, blocks)
    samples_s = []
    for _ in range(session.scaled(10, 3)):
        began_at = time.monotonic()
        image = ClusterImage()
        image.apply(snapshots.read(1, 1))
        authorizer = Authorizer(image.acls.values())
        user = f"User:user-{RULES - 1}"
        assert authorizer.may(user, "127.0.0.1", Operation.READ, ResourceType.TOPIC, TOPIC)
        samples_s.append(time.monotonic() - began_at)
        assert (len(image.users), len(image.acls)) == (USERS, RULES)
    return samples_s


def _create_users(cluster: Cluster, names: Sequence[str]) -> None:
    salt = secrets.token_bytes(SALT_BYTES)
    hashed = salted_password(Mechanism.SHA_512, PASSWORD, salt, DEFAULT_ITERATIONS)
    upsertions = [
        ScramCredentialUpsertion(
            name=name,
            mechanism=_SCRAM_SHA_512,
            iterations=DEFAULT_ITERATIONS,
            salt=salt,
            salted_password=hashed,
        )
        for name in names
    ]
    request = AlterUserScramCredentialsRequest(upsertions=upsertions)
    response = cluster.controller().call(request, AlterUserScramCredentialsResponse)
    for result in response.results:
        check(f"user {result.user!r}", result.error_code, result.error_message)


def _start(broker: AlpacaMQ, directory: Path, login: Login) -> tuple[float, float]:
    """Return the seconds from the start to the first decision, and those of the decision itself."""
    server = broker.start(directory)
    try:
        began_at = time.monotonic()
        with Cluster(parse_address(server.address), login=login) as cluster:
            cluster.topics([TOPIC])
        first_s = time.monotonic() - began_at
        server.stop()
        return server.started_in_s + first_s, first_s
    finally:
        server.kill()
