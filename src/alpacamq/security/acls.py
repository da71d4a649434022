"""Access rules as Kafka has them, and the decision whether a principal may do something.

A rule allows or denies a principal, from a host, an operation on a resource, or on all resources whose names
begin with a prefix. What no rule allows is denied, and a rule that denies wins.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum

import msgspec

from alpacamq.model.errors import InvalidAcl, InvalidPrincipal
from alpacamq.model.names import split_id, split_topic

from .principals import EVERYONE, Principal

ANY_NAME = "*"
ANY_HOST = "*"
CLUSTER_NAME = "kafka-cluster"
MAX_NAME_LENGTH = 1000
# Decisions that are kept; beyond, all are decided again.
MAX_DECISIONS = 100_000
# Decisions about longer names, which no topic can have, are not kept: clients may send any.
MAX_KEPT_NAME_LENGTH = 249


class ResourceType(IntEnum):
    """Kinds of resources, by their numbers in Kafka's protocol."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    # That of enumerations is several times slower, and decisions are looked up by it.
    __hash__ = int.__hash__


class PatternType(IntEnum):
    """How the name in a rule is compared. ANY and MATCH are for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations, by their numbers in Kafka's protocol. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    __hash__ = int.__hash__


def name_of(constant: IntEnum) -> str:
    """Return the name of a constant as requests and commands have it, as describe-configs."""
    return hyphenated(constant.name.lower())


def hyphenated(name: str) -> str:
    """Return a name with hyphens; underscores are accepted as well, as in describe_configs."""
    return name.replace("_", "-")


class Permission(IntEnum):
    """What a rule does. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_CLUSTER_OPERATIONS = frozenset(
    {
        Operation.ALTER,
        Operation.ALTER_CONFIGS,
        Operation.CLUSTER_ACTION,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    }
)
# The operations on each kind of resource.
OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.ALTER,
            Operation.ALTER_CONFIGS,
            Operation.CREATE,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.READ,
            Operation.WRITE,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.ALTER_CONFIGS,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.READ,
        }
    ),
    ResourceType.CLUSTER: _CLUSTER_OPERATIONS,
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT, Operation.WRITE}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
# The operations that a rule has to allow for each: one of them is enough. Denying one does not deny others.
_ALLOWED_BY: dict[Operation, frozenset[Operation]] = {
    operation: frozenset({operation, Operation.ALL}) for operation in Operation
}
_ALLOWED_BY[Operation.DESCRIBE] |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
_ALLOWED_BY[Operation.DESCRIBE_CONFIGS] |= {Operation.ALTER_CONFIGS}


class Acl(msgspec.Struct, frozen=True, array_like=True):
    """One rule."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission
    # The tenant whose members it is about, and in which it names resources; empty without one.
    tenant: str = ""

    @property
    def id(self) -> str:
        """A name of the rule, the same for equal rules."""
        parts = msgspec.structs.astuple(self)
        # Rules without a tenant keep the ids of versions that had no tenants.
        return hashlib.sha256(msgspec.json.encode(parts if self.tenant else parts[:-1])).hexdigest()[:32]

    def __str__(self) -> str:
        verb = self.permission.name.lower()
        kind = self.resource_type.name.lower()
        rest = "*" if self.pattern_type is PatternType.PREFIXED else ""
        return f"{verb} {self.principal} from {self.host} {self.operation.name} of {kind} {self.name}{rest}"


def check_acl(acl: Acl) -> None:
    """Raise InvalidAcl unless a rule can be stored."""
    operations = OPERATIONS.get(acl.resource_type)
    if operations is None:
        raise InvalidAcl(f"a rule is about one kind of resource, not {acl.resource_type.name}")
    if acl.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        raise InvalidAcl(f"the pattern type of a rule is LITERAL or PREFIXED, not {acl.pattern_type.name}")
    if acl.operation is not Operation.ALL and acl.operation not in operations:
        raise InvalidAcl(f"there is no operation {acl.operation.name} on {acl.resource_type.name}")
    if acl.permission not in {Permission.ALLOW, Permission.DENY}:
        raise InvalidAcl(f"a rule is ALLOW or DENY, not {acl.permission.name}")
    if not acl.name or len(acl.name) > MAX_NAME_LENGTH:
        raise InvalidAcl(f"a resource name has 1 to {MAX_NAME_LENGTH} characters")
    if acl.resource_type is ResourceType.CLUSTER and acl.name not in {CLUSTER_NAME, ANY_NAME}:
        raise InvalidAcl(f"the only name of a cluster resource is {CLUSTER_NAME}, not {acl.name!r}")
    if not acl.host or len(acl.host) > MAX_NAME_LENGTH:
        raise InvalidAcl("a rule needs a host: an address, or * for all")
    try:
        principal = Principal.parse(acl.principal)
    except InvalidPrincipal as error:
        raise InvalidAcl(str(error)) from None
    if acl.resource_type is ResourceType.USER:
        _check_user_resource(acl.name)
    if len(principal.name) > MAX_NAME_LENGTH:
        raise InvalidAcl(f"a principal has at most {MAX_NAME_LENGTH} characters")


def _check_user_resource(name: str) -> None:
    if name != ANY_NAME:
        try:
            Principal.parse(name)
        except InvalidPrincipal as error:
            raise InvalidAcl(str(error)) from None


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects rules: None and ANY select all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    # Rules of one tenant, or those without a tenant.
    tenant: str = ""

    def matches(self, acl: Acl) -> bool:
        return (
            self.tenant == acl.tenant
            and self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self._matches_name(acl)
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type in {PatternType.LITERAL, PatternType.PREFIXED}:
            return acl.pattern_type is self.pattern_type and self.name in {None, acl.name}
        if self.name is None:
            return True
        if self.pattern_type is PatternType.ANY:
            return acl.name == self.name
        # MATCH: every rule that applies to a resource of this name.
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in {self.name, ANY_NAME}


def check_filter(wanted: AclFilter) -> None:
    """Raise InvalidAcl for a filter with a value that this version does not know."""
    for name, value in (
        ("resource type", wanted.resource_type),
        ("pattern type", wanted.pattern_type),
        ("operation", wanted.operation),
        ("permission", wanted.permission),
    ):
        if not value:
            raise InvalidAcl(f"the filter has an unknown {name}")


def tenant_of(resource_type: ResourceType, name: str) -> str | None:
    """Return the tenant of a resource by its stored name; None if it has none."""
    if resource_type is ResourceType.TOPIC:
        return split_topic(name)[0]
    if resource_type in {ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID}:
        return split_id(name)[0]
    return None


class _Names:
    """The rules about one kind of resource, by name."""

    def __init__(self) -> None:
        self._literal: dict[str, list[Acl]] = {}
        self._prefixed: dict[str, list[Acl]] = {}
        self._prefix_lengths: list[int] = []

    def add(self, acl: Acl) -> None:
        if acl.pattern_type is PatternType.LITERAL:
            self._literal.setdefault(acl.name, []).append(acl)
        else:
            self._prefixed.setdefault(acl.name, []).append(acl)

    def complete(self) -> None:
        self._prefix_lengths = sorted({len(prefix) for prefix in self._prefixed})

    def about(self, name: str) -> Iterator[Acl]:
        """Yield the rules about a resource of this name."""
        yield from self._literal.get(name, ())
        if name != ANY_NAME:
            yield from self._literal.get(ANY_NAME, ())
        yield from self.about_prefix(name)

    def about_prefix(self, prefix: str) -> Iterator[Acl]:
        """Yield the prefixed rules about every resource whose name begins with `prefix`."""
        for length in self._prefix_lengths:
            if length > len(prefix):
                return
            yield from self._prefixed.get(prefix[:length], ())

    def about_all(self) -> Iterator[Acl]:
        yield from self._literal.get(ANY_NAME, ())

    def __iter__(self) -> Iterator[Acl]:
        for rules in (*self._literal.values(), *self._prefixed.values()):
            yield from rules


_Question = tuple[str, str, Operation, ResourceType, str | None]


class Authorizer:
    """Decides by a set of rules that does not change. Decisions are kept."""

    def __init__(self, acls: Iterable[Acl] = (), super_users: Collection[Principal] = ()) -> None:
        self._super_users = {str(each) for each in super_users}
        self._names: dict[ResourceType, _Names] = {}
        for acl in acls:
            self._names.setdefault(acl.resource_type, _Names()).add(acl)
        for names in self._names.values():
            names.complete()
        # Without a name: on any resource of the kind.
        self._decisions: dict[_Question, bool] = {}

    def may(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether a principal may do something to the resource of this name."""
        key = (principal, host, operation, resource_type, name)
        if (decision := self._decisions.get(key)) is None:
            decision = self._decide(principal, host, operation, resource_type, name)
            self._keep(key, decision)
        return decision

    def _keep(self, key: _Question, decision: bool) -> None:
        name = key[-1]
        if name is not None and (len(name) > MAX_KEPT_NAME_LENGTH or not name.isascii()):
            return
        if len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def _decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        if self.is_super_user(principal):
            return True
        if tenant_of(resource_type, name) is not None:
            return False  # a rule for all names is not one for those of tenants
        names = self._names.get(resource_type)
        if names is None:
            return False
        is_allowed = False
        for acl in names.about(name):
            if _is_about(acl, principal, host):
                if acl.permission is Permission.DENY:
                    if acl.operation in {operation, Operation.ALL}:
                        return False
                elif acl.operation in _ALLOWED_BY[operation]:
                    is_allowed = True
        return is_allowed

    def may_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether a principal may do something to any resource of a kind, existing or not."""
        key = (principal, host, operation, resource_type, None)
        if (decision := self._decisions.get(key)) is None:
            decision = self._decide_any(principal, host, operation, resource_type)
            self._keep(key, decision)
        return decision

    def _decide_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        if self.is_super_user(principal):
            return True
        names = self._names.get(resource_type)
        if names is None or self._denies(names.about_all(), principal, host, operation):
            return False
        for acl in names:
            if (
                acl.permission is Permission.ALLOW
                and acl.operation in _ALLOWED_BY[operation]
                and _is_about(acl, principal, host)
            ):
                if acl.name == ANY_NAME and acl.pattern_type is PatternType.LITERAL:
                    return True
                denials = (
                    names.about(acl.name)
                    if acl.pattern_type is PatternType.LITERAL
                    else names.about_prefix(acl.name)
                )
                if not self._denies(denials, principal, host, operation):
                    return True
        return False

    @staticmethod
    def _denies(acls: Iterable[Acl], principal: str, host: str, operation: Operation) -> bool:
        return any(
            acl.permission is Permission.DENY
            and acl.operation in {operation, Operation.ALL}
            and _is_about(acl, principal, host)
            for acl in acls
        )


def _is_about(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in {principal, str(EVERYONE)} and acl.host in {host, ANY_HOST}
