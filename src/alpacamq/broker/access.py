"""Authentication and authorization of clients, by the users, keys and access rules of the cluster."""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from alpacamq.cluster.commands import (
    AlterUsers,
    CreateAcls,
    CreateApiKey,
    DeleteAcls,
    DeleteApiKey,
    DeletedAcls,
    EditResults,
    UserEdit,
)
from alpacamq.cluster.image import Delta
from alpacamq.model.errors import (
    AlpacaError,
    AuthenticationFailed,
    ClusterNotAuthorized,
    GroupNotAuthorized,
    RateLimited,
    TopicNotAuthorized,
    TransactionalIdNotAuthorized,
)
from alpacamq.model.ports import Clock
from alpacamq.security import api_keys
from alpacamq.security.acls import CLUSTER_NAME, Acl, AclFilter, Authorizer, Operation, ResourceType
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.principals import ANONYMOUS, Principal, user
from alpacamq.security.scram import (
    MAX_PASSWORD_BYTES,
    SALT_BYTES,
    Credential,
    Mechanism,
    credential_of,
    has_password,
    salted_password,
)
from alpacamq.security.users import User, made_up_credential

from .metadata.metadata import Metadata

# Hashing a password takes milliseconds of CPU; more at once would keep the event loop from it.
PASSWORD_THREADS = 2
# Of all addresses; beyond it, logins are refused.
MAX_PENDING_PASSWORDS = 200
# Passwords that were found right are known without hashing them again, as long as the credential is the same.
MAX_KNOWN_PASSWORDS = 10_000
# Wrong passwords that an address may send in a row; then one a second.
FREE_FAILURES = 20
FAILURES_PER_SECOND = 1.0
MAX_FAILED_ADDRESSES = 10_000
WRONG_PASSWORD = "wrong user name or password"  # noqa: S105 - a message

_ERRORS: Mapping[ResourceType, type[AlpacaError]] = {
    ResourceType.TOPIC: TopicNotAuthorized,
    ResourceType.GROUP: GroupNotAuthorized,
    ResourceType.CLUSTER: ClusterNotAuthorized,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdNotAuthorized,
}


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether clients have to authenticate, and whether access rules are in force."""

    authentication: bool = False
    acls: bool = False
    super_users: tuple[Principal, ...] = ()
    # Users of the configuration; they come before those of the metadata.
    users: Mapping[str, User] = {}
    # How long a Kafka client is served before it has to authenticate again; 0 for ever.
    session_lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: its principal, its address, and the API key that it used."""

    principal: Principal
    host: str
    key: ApiKey | None = None
    # The principal as access rules name it.
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", str(self.principal))


# A client that has not authenticated, where access rules are not in force and its address does not matter.
ANONYMOUS_CALLER = Caller(ANONYMOUS, "")


class Access:
    """Authenticates clients and decides what they may do.

    A change of users, keys or rules is in force with the next request: an authorizer is made again at the
    first decision after a change.
    """

    def __init__(self, metadata: Metadata, settings: SecuritySettings, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self.settings = settings
        # Whether every client has to say who it is.
        self.needs_authentication = settings.authentication
        # Whether access rules decide; otherwise every client may do everything.
        self.is_enforced = settings.acls
        self._authorizer: Authorizer | None = None
        self._threads = ThreadPoolExecutor(PASSWORD_THREADS, thread_name_prefix="password")
        # For unknown users, as long as the cluster has no users.
        self._own_secret = secrets.token_bytes(32)
        self._known = _KnownPasswords()
        self._failures = FailureLimit(clock.monotonic)
        # Passwords that wait for a thread.
        self._pending_passwords = 0
        # For metrics.
        self.failed_logins = self.refused_logins = 0
        # When a key was last used on this broker, for its owner to see.
        self.last_use_ms: dict[str, int] = {}
        self._listeners: list[Callable[[], None]] = []
        metadata.subscribe(self._metadata_changed)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _metadata_changed(self, delta: Delta) -> None:
        if delta.security:
            self._authorizer = None
            keys = self._metadata.image.api_keys
            self.last_use_ms = {each: used for each, used in self.last_use_ms.items() if each in keys}
            for listener in self._listeners:
                listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a listener after every change of users, rules or keys."""
        self._listeners.append(listener)

    # Decisions.

    @property
    def authorizer(self) -> Authorizer:
        """The access rules in force now."""
        if self._authorizer is None:
            self._authorizer = Authorizer(self._metadata.image.acls.values(), self.settings.super_users)
        return self._authorizer

    def limits(self, caller: Caller) -> bool:
        """Return whether there is anything that a client may not do, as far as is known without rules."""
        return self.is_enforced or caller.key is not None

    def may(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client may do something to the resource of this name."""
        if caller.key is not None and not caller.key.allows(operation):
            return False
        return not self.is_enforced or self.authorizer.may(caller.name, caller.host, operation, kind, name)

    def may_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Return whether a client may do something to any resource of a kind."""
        if caller.key is not None and not caller.key.allows(operation):
            return False
        return not self.is_enforced or self.authorizer.may_any(caller.name, caller.host, operation, kind)

    def may_topic(self, caller: Caller, operation: Operation, topic: str) -> bool:
        return self.may(caller, operation, ResourceType.TOPIC, topic)

    def may_group(self, caller: Caller, operation: Operation, group: str) -> bool:
        return self.may(caller, operation, ResourceType.GROUP, group)

    def may_cluster(self, caller: Caller, operation: Operation) -> bool:
        return self.may(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def check(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raise the error of the resource if a client may not do something to it.

        To be called before looking whether it exists: the error is the same if it does not.
        """
        if not self.may(caller, operation, kind, name):
            raise _ERRORS[kind](f"{operation.name} is not allowed on {describe(kind, name)}")

    def check_topic(self, caller: Caller, operation: Operation, topic: str) -> None:
        self.check(caller, operation, ResourceType.TOPIC, topic)

    def check_group(self, caller: Caller, operation: Operation, group: str) -> None:
        self.check(caller, operation, ResourceType.GROUP, group)

    def check_transactional_id(self, caller: Caller, operation: Operation, transactional_id: str) -> None:
        self.check(caller, operation, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def check_cluster(self, caller: Caller, operation: Operation) -> None:
        self.check(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, caller: Caller, kind: ResourceType, name: str, of: Collection[Operation]) -> int:
        """Return the operations that a client may do, as the bits of Kafka's protocol."""
        return sum(1 << operation for operation in of if self.may(caller, operation, kind, name))

    # Users.

    def user(self, name: str) -> User | None:
        """Return a user; None if there is none of this name."""
        return self.settings.users.get(name) or self._metadata.image.users.get(name)

    def users(self) -> Iterator[User]:
        """Yield the users of the metadata."""
        yield from self._metadata.image.users.values()

    def stored_user(self, name: str) -> User | None:
        """Return a user of the metadata; None if there is none of this name."""
        return self._metadata.image.users.get(name)

    def credential(self, mechanism: Mechanism, name: str) -> Credential:
        """Return the credential of a user; one that no password matches if there is none."""
        known = self.user(name)
        if known is not None and (credential := known.credentials.get(mechanism)) is not None:
            return credential
        secret = self._metadata.image.salt_secret or self._own_secret
        return made_up_credential(secret, mechanism, name)

    def known_login(self, name: str, password: str, host: str) -> Caller | None:
        """Return the client if its password was found right before; None if it has to be hashed."""
        _, credential = self._for_password(name)
        return Caller(user(name), host) if self._known.has(name, password, credential) else None

    def _for_password(self, name: str) -> tuple[Mechanism, Credential]:
        """Return the credential that a password is compared with."""
        known = self.user(name)
        mechanism = next(iter(known.credentials), Mechanism.SHA_256) if known else Mechanism.SHA_256
        return mechanism, self.credential(mechanism, name)

    async def log_in(self, name: str, password: str, host: str) -> Caller:
        """Return the client that has sent this password. Raises AuthenticationFailed, RateLimited."""
        mechanism, credential = self._for_password(name)
        if not self._known.has(name, password, credential):
            self.check_failures(host)
            if len(password.encode()) > MAX_PASSWORD_BYTES:
                self.failed(host)
                raise AuthenticationFailed(WRONG_PASSWORD)
            if self._pending_passwords >= MAX_PENDING_PASSWORDS:
                self.refused_logins += 1
                raise RateLimited("too many logins at the same time; try again in a few seconds")
            loop = asyncio.get_running_loop()
            # Counted before it is known to be wrong: many at once would keep the threads busy for long.
            self._failures.count(host)
            self._pending_passwords += 1
            try:
                is_right = await loop.run_in_executor(
                    self._threads, has_password, mechanism, credential, password
                )
            finally:
                self._pending_passwords -= 1
                self._failures.count(host, -1)
            if not is_right:
                self.failed(host)
                raise AuthenticationFailed(WRONG_PASSWORD)
            self._known.add(name, password, credential)
        return Caller(user(name), host)

    def check_failures(self, host: str) -> None:
        """Raise RateLimited if an address has sent too many wrong passwords."""
        if self._failures.is_exceeded(host):
            self.refused_logins += 1
            raise RateLimited("too many failed logins from this address; try again in a minute")

    def failed(self, host: str) -> None:
        """Count a wrong password or key."""
        self.failed_logins += 1
        self._failures.count(host)

    def anonymous(self, host: str) -> Caller:
        """Return a client that has not said who it is."""
        return Caller(ANONYMOUS, host)

    async def set_password(
        self, name: str, password: str, mechanisms: Collection[Mechanism], iterations: int
    ) -> None:
        """Create a user, or change its password."""
        loop = asyncio.get_running_loop()
        edits = []
        for mechanism in mechanisms:
            salt = secrets.token_bytes(SALT_BYTES)
            salted = await loop.run_in_executor(
                self._threads, salted_password, mechanism, password, salt, iterations
            )
            edits.append(UserEdit(name, mechanism, credential_of(mechanism, salted, salt, iterations)))
        for failure in (await self.alter_users(edits)).failures:
            if failure is not None:
                raise failure.to_error()

    async def alter_users(self, edits: Collection[UserEdit]) -> EditResults:
        """Set or delete credentials, each on its own."""
        command = AlterUsers(edits=tuple(edits), salt_secret=secrets.token_bytes(32))
        return await self._metadata.ask(command)

    # Access rules.

    def acls(self, wanted: AclFilter) -> Iterator[Acl]:
        """Yield the rules that match a filter."""
        yield from filter(wanted.matches, list(self._metadata.image.acls.values()))

    async def create_acls(self, acls: Collection[Acl]) -> EditResults:
        """Add rules, each on its own."""
        return await self._metadata.ask(CreateAcls(acls=tuple(acls)))

    async def delete_acls(self, filters: Collection[AclFilter]) -> DeletedAcls:
        """Remove the rules that match filters."""
        return await self._metadata.ask(DeleteAcls(filters=tuple(filters)))

    # API keys.

    def api_keys(self) -> Mapping[str, ApiKey]:
        return self._metadata.image.api_keys

    async def create_api_key(
        self, owner: str, *, expires_ms: int | None, scopes: Collection[Operation], description: str
    ) -> tuple[ApiKey, str]:
        """Create a key; return it, and its text, which is not stored."""
        secret = api_keys.new_secret(secrets.token_bytes(api_keys.SECRET_BYTES))
        key = ApiKey(
            id=api_keys.new_id(secrets.token_bytes(api_keys.ID_BYTES)),
            owner=owner,
            aws_secret=api_keys.aws_secret_of(secret),
            created_ms=self._clock.now_ms(),
            expires_ms=expires_ms,
            scopes=tuple(scopes),
            description=description,
        )
        created = await self._metadata.ask(CreateApiKey(key=key))
        return created, api_keys.text_of(created.id, secret)

    async def delete_api_key(self, key_id: str) -> ApiKey:
        return await self._metadata.ask(DeleteApiKey(key_id=key_id))

    def by_key(self, text: str, host: str) -> Caller:
        """Return the client that has sent this API key. Raises AuthenticationFailed, RateLimited."""
        presented = api_keys.parse(text)
        key = None if presented is None else self._metadata.image.api_keys.get(presented.id)
        if presented is None or key is None or not key.has_secret(presented.secret):
            self.check_failures(host)
            self.failed(host)
            raise AuthenticationFailed("unknown API key")
        return self.used_key(key, host)

    def used_key(self, key: ApiKey, host: str) -> Caller:
        """Return the client that has proved to have a key. Raises AuthenticationFailed if it has expired."""
        now_ms = self._clock.now_ms()
        if key.is_expired(now_ms):
            raise AuthenticationFailed("the API key has expired")
        self.last_use_ms[key.id] = now_ms
        return Caller(user(key.owner), host, key)


def describe(kind: ResourceType, name: str) -> str:
    """Return a resource as error messages name it."""
    if kind is ResourceType.CLUSTER:
        return "the cluster"
    return f"{kind.name.lower().replace('_', ' ')} {name!r}"


class _KnownPasswords:
    """Hashes of passwords that were found right, with a key that is never stored."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._credentials: OrderedDict[bytes, Credential] = OrderedDict()

    def has(self, name: str, password: str, credential: Credential) -> bool:
        digest = self._digest(name, password)
        if self._credentials.get(digest) != credential:
            return False
        self._credentials.move_to_end(digest)
        return True

    def add(self, name: str, password: str, credential: Credential) -> None:
        self._credentials[self._digest(name, password)] = credential
        if len(self._credentials) > MAX_KNOWN_PASSWORDS:
            self._credentials.popitem(last=False)

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._secret, f"{len(name)}:{name}{password}".encode(), sha256)


class FailureLimit:
    """Failed logins by address: some at once, then at a low rate."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # The number of failures left over, and when it was that.
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def is_exceeded(self, host: str) -> bool:
        return self._left_over(host) >= FREE_FAILURES

    def count(self, host: str, failures: int = 1) -> None:
        """Add failures, or take some back."""
        self._failures[host] = (max(0.0, self._left_over(host) + failures), self._now())
        self._failures.move_to_end(host)
        if len(self._failures) > MAX_FAILED_ADDRESSES:
            self._failures.popitem(last=False)

    def _left_over(self, host: str) -> float:
        count, counted_at = self._failures.get(host, (0.0, 0.0))
        return max(0.0, count - (self._now() - counted_at) * FAILURES_PER_SECOND)
