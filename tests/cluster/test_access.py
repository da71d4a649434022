"""Users, access rules and API keys in the metadata."""

import pytest

from alpacamq.cluster.brokers import FeatureRange
from alpacamq.cluster.commands import (
    AlterQuotas,
    AlterUsers,
    CreateAcls,
    CreateApiKey,
    DeleteAcls,
    DeleteApiKey,
    EditResults,
    RotateApiKey,
    UserEdit,
)
from alpacamq.cluster.image import CURRENT_LEVEL, VERSION_FEATURE, ClusterImage, difference
from alpacamq.model.errors import FeatureNotEnabled, InvalidAcl, InvalidRequest, UnknownApiKey
from alpacamq.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.quotas import ClientQuota, EntityPart, QuotaEdit, QuotaOp
from alpacamq.security.scram import Credential, Mechanism, credential_of, salted_password

from .clusters import Cluster

SALT = b"12345678"
ALICE_READS = Acl(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)


def credential() -> Credential:
    salted = salted_password(Mechanism.SHA_256, "secret", SALT, 4096)
    return credential_of(Mechanism.SHA_256, salted, SALT, 4096)


def alter(cluster: Cluster, *edits: UserEdit) -> list[str | None]:
    results = cluster.ask(AlterUsers(edits=edits, salt_secret=b"s" * 32))
    return errors(results)


def errors(results: EditResults) -> list[str | None]:
    return [None if each is None else each.error for each in results.failures]


def replayed(image: ClusterImage) -> ClusterImage:
    copy = ClusterImage()
    copy.apply(image.changes())
    return copy


def test_credentials_are_set_and_deleted_and_the_user_goes_with_the_last() -> None:
    cluster = Cluster(1)
    first, second = (
        UserEdit("alice", Mechanism.SHA_256, credential()),
        UserEdit("alice", Mechanism.SHA_512, credential()),
    )
    assert alter(cluster, first, second) == [None, None]
    assert cluster.image.users["alice"].credentials.keys() == set(Mechanism)
    assert alter(cluster, UserEdit("alice", Mechanism.SHA_256)) == [None]
    assert cluster.image.users["alice"].credentials.keys() == {Mechanism.SHA_512}
    assert alter(cluster, UserEdit("alice", Mechanism.SHA_512)) == [None]
    assert not cluster.image.users


def test_a_user_is_deleted_with_all_credentials() -> None:
    cluster = Cluster(1)
    alter(cluster, UserEdit("alice", Mechanism.SHA_256, credential()))
    assert alter(cluster, UserEdit("alice", None)) == [None]
    assert not cluster.image.users


def test_each_edit_of_a_user_succeeds_or_fails_on_its_own() -> None:
    cluster = Cluster(1)
    weak = Credential(salt=SALT, iterations=1, stored_key=b"", server_key=b"")
    slow = Credential(salt=SALT, iterations=10**9, stored_key=b"", server_key=b"")
    assert alter(
        cluster,
        UserEdit("nobody", None),
        UserEdit("alice", Mechanism.SHA_256, weak),
        UserEdit("alice", Mechanism.SHA_256, slow),
        UserEdit("", Mechanism.SHA_256, credential()),
        UserEdit("ANONYMOUS", Mechanism.SHA_256, credential()),
        UserEdit("bob", Mechanism.SHA_256, credential()),
        UserEdit("bob", Mechanism.SHA_512),
    ) == [
        "UnknownUser",
        "InvalidCredential",
        "InvalidCredential",
        "InvalidPrincipal",
        "InvalidPrincipal",
        None,
        "UnknownUser",
    ]
    assert set(cluster.image.users) == {"bob"}


def test_the_secret_for_unknown_users_is_stored_once() -> None:
    cluster = Cluster(1)
    alter(cluster, UserEdit("alice", Mechanism.SHA_256, credential()))
    cluster.ask(AlterUsers(edits=(UserEdit("bob", Mechanism.SHA_256, credential()),), salt_secret=b"other"))
    assert cluster.image.salt_secret == b"s" * 32
    assert replayed(cluster.image).salt_secret == b"s" * 32


def test_rules_are_added_once_and_deleted_by_filters() -> None:
    cluster = Cluster(1)
    writes = Acl(
        ResourceType.TOPIC, "or", PatternType.PREFIXED, "User:bob", "*", Operation.WRITE, Permission.DENY
    )
    assert errors(cluster.ask(CreateAcls(acls=(ALICE_READS, writes, ALICE_READS)))) == [None] * 3
    assert set(cluster.image.acls.values()) == {ALICE_READS, writes}
    matching = AclFilter(name="orders", pattern_type=PatternType.MATCH, principal="User:bob")
    assert cluster.ask(DeleteAcls(filters=(matching, AclFilter(host="::1")))).matches == ((writes,), ())
    assert list(cluster.image.acls.values()) == [ALICE_READS]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("resource_type", ResourceType.ANY),
        ("name", ""),
        ("name", "n" * 1001),
        ("pattern_type", PatternType.MATCH),
        ("principal", "alice"),
        ("principal", "User:"),
        ("host", ""),
        ("operation", Operation.ANY),
        ("operation", Operation.CLUSTER_ACTION),
        ("permission", Permission.ANY),
    ],
)
def test_invalid_rules_are_refused_each_on_its_own(field: str, value: object) -> None:
    cluster = Cluster(1)
    values = {name: getattr(ALICE_READS, name) for name in ALICE_READS.__struct_fields__}
    wrong = Acl(**{**values, field: value})
    assert errors(cluster.ask(CreateAcls(acls=(wrong, ALICE_READS)))) == ["InvalidAcl", None]
    assert list(cluster.image.acls.values()) == [ALICE_READS]


def test_a_filter_with_unknown_values_deletes_nothing() -> None:
    cluster = Cluster(1)
    cluster.ask(CreateAcls(acls=(ALICE_READS,)))
    with pytest.raises(InvalidAcl, match="unknown operation"):
        cluster.ask(DeleteAcls(filters=(AclFilter(), AclFilter(operation=Operation.UNKNOWN))))
    assert cluster.image.acls


def key_of(key_id: str = "k1", description: str = "") -> ApiKey:
    return ApiKey(id=key_id, owner="alice", aws_secret="0" * 64, created_ms=1, description=description)


def test_the_keys_of_a_deleted_user_are_deleted_and_others_stay() -> None:
    cluster = Cluster(1)
    alter(cluster, UserEdit("alice", Mechanism.SHA_256, credential()))
    alter(cluster, UserEdit("alice", Mechanism.SHA_512, credential()))
    cluster.ask(CreateApiKey(key=key_of()))
    others = ApiKey(id="k2", owner="bob", aws_secret="0" * 64, created_ms=1)
    cluster.ask(CreateApiKey(key=others))
    alter(cluster, UserEdit("alice", Mechanism.SHA_256))
    assert cluster.image.api_keys.keys() == {"k1", "k2"}
    alter(cluster, UserEdit("alice", Mechanism.SHA_512))
    assert cluster.image.api_keys.keys() == {"k2"}
    assert replayed(cluster.image).api_keys.keys() == {"k2"}


def test_a_repeated_creation_of_a_key_finds_it_and_another_of_its_id_is_refused() -> None:
    cluster = Cluster(1)
    assert cluster.ask(CreateApiKey(key=key_of())) == key_of()
    assert cluster.ask(CreateApiKey(key=key_of())) == key_of()
    with pytest.raises(InvalidRequest, match="exists"):
        cluster.ask(CreateApiKey(key=key_of(description="other")))
    assert cluster.ask(DeleteApiKey(key_id="k1")) == key_of()
    with pytest.raises(UnknownApiKey, match="k1"):
        cluster.ask(DeleteApiKey(key_id="k1"))


def test_a_key_that_is_replaced_ends_and_never_lasts_longer_than_before() -> None:
    cluster = Cluster(1)
    cluster.ask(CreateApiKey(key=key_of()))
    rotation = RotateApiKey(key_id="k1", key=key_of("k2"), expires_ms=100)
    for _ in range(2):  # a repeated command finds the key
        assert cluster.ask(rotation) == key_of("k2")
    assert cluster.image.api_keys["k1"].expires_ms == 100
    assert cluster.image.api_keys["k2"].expires_ms is None
    cluster.ask(RotateApiKey(key_id="k1", key=key_of("k3"), expires_ms=200))
    assert cluster.image.api_keys["k1"].expires_ms == 100
    with pytest.raises(UnknownApiKey, match="k9"):
        cluster.ask(RotateApiKey(key_id="k9", key=key_of("k4"), expires_ms=100))
    assert "k4" not in cluster.image.api_keys


def test_security_is_in_snapshots_and_in_differences() -> None:
    cluster = Cluster(1)
    before = cluster.image.copy()
    alter(cluster, UserEdit("älice, the=first", Mechanism.SHA_256, credential()))
    cluster.ask(CreateAcls(acls=(ALICE_READS,)))
    cluster.ask(CreateApiKey(key=key_of()))
    after = replayed(cluster.image)
    assert (after.users, after.acls, after.api_keys) == (
        cluster.image.users,
        cluster.image.acls,
        cluster.image.api_keys,
    )
    assert difference(before, after).security
    assert not difference(after, cluster.image).security


def test_brokers_of_an_older_version_are_not_given_records_that_they_do_not_know() -> None:
    cluster = Cluster(0)
    cluster.register(1, features=FeatureRange(1, 1))
    cluster.register(2)
    with pytest.raises(FeatureNotEnabled, match="alpacactl cluster upgrade"):
        cluster.ask(CreateAcls(acls=(ALICE_READS,)))
    assert not cluster.image.acls


def test_a_single_broker_goes_to_the_level_with_the_first_user() -> None:
    cluster = Cluster(0)
    cluster.register(1, features=FeatureRange(1, 1))
    alter(cluster, UserEdit("alice", Mechanism.SHA_256, credential()))
    assert cluster.image.features == {VERSION_FEATURE: CURRENT_LEVEL}


def alter_quotas(cluster: Cluster, *edits: QuotaEdit, dry_run: bool = False) -> list[str | None]:
    return errors(cluster.ask(AlterQuotas(edits=edits, dry_run=dry_run)))


ALICE = (EntityPart("user", "alice"),)


def test_quotas_are_set_changed_and_removed_and_are_part_of_a_snapshot() -> None:
    cluster = Cluster(1)
    edit = QuotaEdit(ALICE, (QuotaOp("producer_byte_rate", 1000), QuotaOp("consumer_byte_rate", 2000)))
    assert alter_quotas(cluster, edit, dry_run=True) == [None]
    assert not cluster.image.quotas
    before = cluster.image.copy()
    assert alter_quotas(cluster, edit) == [None]
    (quota,) = cluster.image.quotas.values()
    assert quota == ClientQuota(entity=ALICE, values={"producer_byte_rate": 1000, "consumer_byte_rate": 2000})
    assert difference(before, cluster.image).quotas
    assert replayed(cluster.image).quotas == cluster.image.quotas
    assert not difference(replayed(cluster.image), cluster.image).quotas
    assert alter_quotas(cluster, QuotaEdit(ALICE, (QuotaOp("consumer_byte_rate", None),))) == [None]
    assert next(iter(cluster.image.quotas.values())).values == {"producer_byte_rate": 1000}
    assert alter_quotas(cluster, QuotaEdit(ALICE, (QuotaOp("producer_byte_rate", None),))) == [None]
    assert not cluster.image.quotas
    assert not replayed(cluster.image).quotas


def test_each_entity_with_quotas_is_changed_on_its_own() -> None:
    cluster = Cluster(1)
    both = (EntityPart("user", "alice"), EntityPart("client-id", None))
    assert alter_quotas(
        cluster,
        QuotaEdit(ALICE, (QuotaOp("producer_byte_rate", -1),)),
        QuotaEdit(both, (QuotaOp("producer_byte_rate", 5),)),
        QuotaEdit((), ()),
    ) == ["InvalidRequest", None, "InvalidRequest"]
    # However its parts are ordered.
    assert alter_quotas(cluster, QuotaEdit(both[::-1], (QuotaOp("request_percentage", 1),))) == [None]
    (quota,) = cluster.image.quotas.values()
    assert quota.values == {"producer_byte_rate": 5, "request_percentage": 1}


def test_quotas_need_their_level_if_there_are_several_brokers() -> None:
    cluster = Cluster(0)
    for number in (1, 2):
        cluster.register(number, features=FeatureRange(1, 2))
    with pytest.raises(FeatureNotEnabled, match="quotas need level 3"):
        alter_quotas(cluster, QuotaEdit(ALICE, (QuotaOp("producer_byte_rate", 5),)))
    assert alter(cluster, UserEdit("alice", Mechanism.SHA_256, credential())) == [None]
