"""Authentication and authorization of clients, by the users, keys and access rules of the cluster."""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from ipaddress import IPv6Address
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec

from alpacamq.cluster.commands import (
    AddMember,
    AlterTenant,
    AlterUsers,
    CreateAcls,
    CreateApiKey,
    CreateTenant,
    DeleteAcls,
    DeleteApiKey,
    DeletedAcls,
    DeleteTenant,
    EditResults,
    Failure,
    RemoveMember,
    RotateApiKey,
    UserEdit,
)
from alpacamq.cluster.image import Delta
from alpacamq.model import names
from alpacamq.model.errors import (
    AlpacaError,
    AuthenticationFailed,
    ClusterNotAuthorized,
    DelegationTokenNotAuthorized,
    GroupNotAuthorized,
    InvalidTenant,
    RateLimited,
    TopicNotAuthorized,
    TransactionalIdNotAuthorized,
    UnknownTenant,
)
from alpacamq.model.ports import Clock
from alpacamq.security import api_keys
from alpacamq.security.acls import CLUSTER_NAME, Acl, AclFilter, Authorizer, Operation, ResourceType
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.callers import ANONYMOUS_CALLER, Caller
from alpacamq.security.oauth import UnknownKey, WrongSignature
from alpacamq.security.principals import Principal, user
from alpacamq.security.scram import (
    MAX_PASSWORD_BYTES,
    SALT_BYTES,
    Credential,
    Mechanism,
    credential_of,
    has_password,
    salted_password,
)
from alpacamq.security.tenants import CLUSTER_OPERATIONS, Member, Tenant, TenantLimits, TenantStatus
from alpacamq.security.users import User, made_up_credential

from .audit import Audit
from .bearer_tokens import BearerTokens, TokenSettings
from .delegation_tokens import DelegationSettings, DelegationTokens
from .metadata.metadata import Metadata

__all__ = ["ANONYMOUS_CALLER", "Access", "Caller", "SecuritySettings", "denied", "describe"]

T = TypeVar("T")

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
# A wrong password is refused this long after it arrived.
WRONG_PASSWORD_SECONDS = 0.1
# Users whose credentials those of unknown users are like.
SAMPLED_USERS = 1000
WRONG_PASSWORD = "wrong user name or password"  # noqa: S105 - a message

_ERRORS: Mapping[ResourceType, type[AlpacaError]] = {
    ResourceType.TOPIC: TopicNotAuthorized,
    ResourceType.GROUP: GroupNotAuthorized,
    ResourceType.CLUSTER: ClusterNotAuthorized,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdNotAuthorized,
    ResourceType.USER: DelegationTokenNotAuthorized,
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
    # How long a login of the console lasts unused, and in all.
    console_idle_ms: int = 30 * 60_000
    console_lifetime_ms: int = 12 * 3_600_000
    # The provider of bearer tokens; None if they are not accepted.
    tokens: TokenSettings | None = None
    # None: delegation tokens are disabled.
    delegation: DelegationSettings | None = None


class Access:
    """Authenticates clients and decides what they may do.

    A change of users, keys or rules is in force with the next request: an authorizer is made again at the
    first decision after a change.
    """

    def __init__(
        self, metadata: Metadata, settings: SecuritySettings, clock: Clock, audit: Audit | None = None
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self.settings = settings
        # None if nothing is audited.
        self.audit = audit
        # Whether every client has to say who it is.
        self.needs_authentication = settings.authentication
        # Whether access rules decide; otherwise every client may do everything.
        self.is_enforced = settings.acls
        self._authorizer: Authorizer | None = None
        # The tenants of principals, and the authorizer of each; made again after a change.
        self._tenants: dict[str, str] | None = None
        self._tenant_authorizers: dict[str, TenantAuthorizer] = {}
        self._threads = ThreadPoolExecutor(PASSWORD_THREADS, thread_name_prefix="password")
        # For unknown users, as long as the cluster has no users.
        self._own_secret = secrets.token_bytes(32)
        self._known_shapes: dict[Mechanism, Sequence[tuple[int, int]]] = {}
        self._known = _KnownPasswords()
        # None if bearer tokens are not accepted.
        self.tokens = None if settings.tokens is None else BearerTokens(settings.tokens, clock.now_ms)
        self.delegation_tokens = DelegationTokens(metadata, settings.delegation, self._threads, audit)
        self._failures = FailureLimit(clock.monotonic)
        # Passwords that wait for a thread.
        self._pending_passwords = 0
        # For metrics.
        self.failed_logins = self.refused_logins = 0
        # When a key was last used on this broker, for its owner to see.
        self.last_use_ms: dict[str, int] = {}
        # Raises an error if a group would be one more than the tenant may have.
        self.check_new_group: Callable[[str, str], None] = lambda _tenant, _group: None
        self._listeners: list[Callable[[], None]] = []
        # Counted up with every change of users, rules, keys and tenants.
        self.epoch = 0
        # Done with the next change, if something waits for it.
        self._change: asyncio.Future[None] | None = None
        metadata.subscribe(self._metadata_changed)

    def requires_login(self, authentication: bool | None) -> bool:
        """Return whether clients must authenticate on a listener, which may have a setting of its own."""
        return self.needs_authentication if authentication is None else authentication

    async def run(self) -> None:
        """Keep the keys of bearer tokens up to date, until cancelled."""
        if self.tokens is not None:
            await self.tokens.keys.run()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _metadata_changed(self, delta: Delta) -> None:
        if delta.security:
            self.epoch += 1
            self._authorizer = None
            self._tenants = None
            self._tenant_authorizers.clear()
            self._known_shapes.clear()
            keys = self._metadata.image.api_keys
            self.last_use_ms = {each: used for each, used in self.last_use_ms.items() if each in keys}
            for listener in self._listeners:
                listener()
            if self._change is not None:
                self._change.set_result(None)
                self._change = None

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a listener after every change of users, rules or keys."""
        self._listeners.append(listener)

    async def while_allowed(self, work: Awaitable[T], caller: Caller, check: Callable[[], None]) -> T:
        """Return the result of work that may wait for long, such as a long poll.

        If a change of rules or keys makes `check` raise an error, or deletes the key of the client, the work
        is cancelled and the error raised.
        """
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                if self._change is None:
                    self._change = asyncio.get_running_loop().create_future()
                either: set[asyncio.Future[Any]] = {working, self._change}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    if caller.key is not None and caller.key.id not in self._metadata.image.api_keys:
                        raise AuthenticationFailed("the API key was deleted")
                    check()
            return await working
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})

    # Decisions.

    @property
    def authorizer(self) -> Authorizer:
        """The access rules in force now."""
        if self._authorizer is None:
            rules = (acl for acl in self._metadata.image.acls.values() if not acl.tenant)
            self._authorizer = Authorizer(rules, self.settings.super_users)
        return self._authorizer

    def tenant_of(self, caller: Caller) -> str | None:
        """Return the tenant that a client belongs to now; None if it belongs to none."""
        tenants = self._tenants
        if tenants is None:
            members = self._metadata.image.members.values()
            tenants = self._tenants = {each.principal: each.tenant for each in members}
        return tenants.get(caller.name) if tenants else None

    def _tenant_authorizer(self, tenant: str) -> "TenantAuthorizer":
        if (found := self._tenant_authorizers.get(tenant)) is None:
            image = self._metadata.image
            authorizer = None
            if self.is_enforced:
                authorizer = Authorizer(
                    (acl for acl in image.acls.values() if acl.tenant == tenant),
                    [
                        Principal.parse(each.principal)
                        for each in image.members.values()
                        if each.tenant == tenant and each.is_admin
                    ],
                )
            found = self._tenant_authorizers[tenant] = TenantAuthorizer(image.tenants[tenant], authorizer)
        return found

    def limits(self, caller: Caller) -> bool:
        """Return whether decisions about a client matter: it may be denied something, or they are audited."""
        if self.is_enforced or caller.key is not None or self.audit is not None:
            return True
        tenants = self._tenants
        return self.tenant_of(caller) is not None if tenants is None else caller.name in tenants

    def may_keep(self, operation: Operation) -> bool:
        """Return whether a decision that allows an operation may be kept: not if each of them is recorded."""
        return self.audit is None or not self.audit.records_allowed(operation)

    def sees(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client may do something to the resource of this name, which it did not ask for.

        For lists, and for rights that another one can replace: what is left out is not denied, and not
        audited.
        """
        if caller.key is not None and not caller.key.allows(operation):
            return False
        if (tenant := self.tenant_of(caller)) is not None:
            return self._tenant_authorizer(tenant).may(caller, operation, kind, name)
        return not self.is_enforced or self.authorizer.may(caller.name, caller.host, operation, kind, name)

    def sees_topic(self, caller: Caller, operation: Operation, topic: str) -> bool:
        return self.sees(caller, operation, ResourceType.TOPIC, topic)

    def sees_cluster(self, caller: Caller, operation: Operation) -> bool:
        return self.sees(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client may do something to the resource of this name."""
        is_allowed = self.sees(caller, operation, kind, name)
        if self.audit is not None:
            self.audit.decided(caller, operation, kind, name, allowed=is_allowed)
        return is_allowed

    def may_or_on_cluster(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client may do something to a resource, or to all that the cluster has."""
        is_allowed = self.sees_cluster(caller, operation) or self.sees(caller, operation, kind, name)
        if self.audit is not None:
            self.audit.decided(caller, operation, kind, name, allowed=is_allowed)
        return is_allowed

    def may_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        """Return whether a client may do something to any resource of a kind."""
        if caller.key is not None and not caller.key.allows(operation):
            return False
        if (tenant := self.tenant_of(caller)) is not None:
            return self._tenant_authorizer(tenant).may_any(caller, operation, kind)
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
            raise self.denial(caller, operation, kind, name)
        if (
            kind is ResourceType.GROUP
            and operation is Operation.READ
            and (tenant := self.tenant_of(caller)) is not None
        ):
            self.check_new_group(tenant, name)

    def denial(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> AlpacaError:
        """Return the error of an operation that a client may not do."""
        if refusal := self._refusal(caller):
            return _ERRORS[kind](refusal)
        return denied(operation, kind, name)

    def _refusal(self, caller: Caller) -> str:
        """Return why nothing is allowed to the members of a client's tenant; empty if that is not so."""
        tenant = self.tenant_of(caller)
        known = None if tenant is None else self._metadata.image.tenants.get(tenant)
        return "" if known is None or known.is_active else known.refusal

    def check_active(self, caller: Caller) -> None:
        """Raise ClusterNotAuthorized for a client of a tenant that is suspended or disabled."""
        if refusal := self._refusal(caller):
            raise ClusterNotAuthorized(refusal)

    def check_admitted(self, caller: Caller) -> None:
        """Raise AuthenticationFailed for a client of a tenant that is disabled."""
        tenant = self.tenant_of(caller)
        known = None if tenant is None else self._metadata.image.tenants.get(tenant)
        if known is not None and known.status is TenantStatus.DISABLED:
            raise AuthenticationFailed(known.refusal)

    def connection_limit(self, caller: Caller) -> int | None:
        """Return how many Kafka connections the clients of a tenant may have to this broker."""
        tenant = self.tenant_of(caller)
        known = None if tenant is None else self._metadata.image.tenants.get(tenant)
        return None if known is None else known.limits.connections

    def check_whole(self, caller: Caller, operation: Operation) -> str:
        """Return the tenant to the whole of which a client may do something; empty without a tenant.

        That is the right to the cluster in the rules of the tenant. Raises ClusterNotAuthorized.
        """
        if (tenant := self.tenant_of(caller)) is None:
            self.check_cluster(caller, operation)
            return ""
        is_in_scope = caller.key is None or caller.key.allows(operation)
        is_allowed = is_in_scope and self._tenant_authorizer(tenant).may_whole(caller, operation)
        if self.audit is not None:
            self.audit.decided(caller, operation, ResourceType.CLUSTER, CLUSTER_NAME, allowed=is_allowed)
        if not is_allowed:
            raise ClusterNotAuthorized(
                self._refusal(caller) or f"{operation.name} is not allowed on the tenant"
            )
        return tenant

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
        return sum(1 << operation for operation in of if self.sees(caller, operation, kind, name))

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
        return made_up_credential(self._salt_secret, mechanism, name, self._shapes(mechanism))

    @property
    def _salt_secret(self) -> bytes:
        return self._metadata.image.salt_secret or self._own_secret

    def _shapes(self, mechanism: Mechanism) -> Sequence[tuple[int, int]]:
        """Return the salt sizes and iterations of some users; unknown users get the same."""
        if (shapes := self._known_shapes.get(mechanism)) is None:
            some = islice(chain(self.settings.users.values(), self.users()), SAMPLED_USERS)
            found = (user.credentials.get(mechanism) for user in some)
            shapes = sorted({(len(each.salt), each.iterations) for each in found if each is not None})
            self._known_shapes[mechanism] = shapes
        return shapes

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
            began_at = loop.time()
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
                # Hashing takes longer for some users than for others, and for unknown ones.
                await asyncio.sleep(began_at + WRONG_PASSWORD_SECONDS - loop.time())
                raise AuthenticationFailed(WRONG_PASSWORD)
            self._known.add(name, password, credential)
        return Caller(user(name), host)

    def remaining_ms(self, expires_ms: int | None) -> int | None:
        """Return how long a credential is still valid; None if it does not end."""
        return None if expires_ms is None else expires_ms - self._clock.now_ms()

    # Bearer tokens.

    def known_token(self, text: str, host: str) -> Caller | None:
        """Return the client if its bearer token was verified before; None if it has to be verified."""
        token = None if self.tokens is None else self.tokens.known(text)
        if token is None:
            return None
        return Caller(user(token.user), host, remaining_ms=token.expires_ms - self._clock.now_ms())

    async def by_token(self, text: str, host: str) -> Caller:
        """Return the client that has sent this bearer token. Raises AuthenticationFailed, RateLimited."""
        if (known := self.known_token(text, host)) is not None:
            return known
        if self.tokens is None:
            raise AuthenticationFailed("bearer tokens are not accepted; set security.jwks_url or jwks_file")
        self.check_failures(host)
        try:
            token = await self.tokens.verify(text)
        except AuthenticationFailed:
            # Of the provider, or a text that is none: not a guess, and cheap to refuse.
            self.failed_logins += 1
            raise
        except (UnknownKey, WrongSignature) as error:
            self.failed(host)
            raise AuthenticationFailed(str(error)) from None
        return Caller(user(token.user), host, remaining_ms=token.expires_ms - self._clock.now_ms())

    # Delegation tokens.

    def token_credential(self, mechanism: Mechanism, token_id: str) -> Credential:
        """Return the credential of a delegation token; one that no HMAC matches if there is none."""
        token = self.delegation_tokens.valid(token_id)
        if token is not None:
            return token.credentials[mechanism]
        return made_up_credential(self._salt_secret, mechanism, token_id)

    def by_delegation_token(self, token_id: str, host: str) -> Caller:
        """Return the client that has proved to have a delegation token. Raises AuthenticationFailed."""
        token = self.delegation_tokens.valid(token_id)
        if token is None:
            raise AuthenticationFailed(WRONG_PASSWORD)
        return Caller(
            Principal.parse(token.owner),
            host,
            remaining_ms=self.delegation_tokens.remaining_ms(token),
            is_delegate=True,
        )

    def check_failures(self, host: str) -> None:
        """Raise RateLimited if an address has sent too many wrong passwords."""
        if self._failures.is_exceeded(host):
            self.refused_logins += 1
            raise RateLimited("too many failed logins from this address; try again in a minute")

    def failed(self, host: str) -> None:
        """Count a wrong password or key."""
        self.failed_logins += 1
        self._failures.count(host)

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
        results = await self._metadata.ask(command)
        for edit, failure in zip(edits, results.failures, strict=True):
            operation = Operation.DELETE if edit.credential is None else Operation.ALTER
            self._changed(operation, "user", edit.name, str(edit.mechanism or ""), failure)
        return results

    # Access rules.

    def acls(self, wanted: AclFilter) -> Iterator[Acl]:
        """Yield the rules that match a filter."""
        yield from filter(wanted.matches, list(self._metadata.image.acls.values()))

    async def create_acls(self, acls: Collection[Acl]) -> EditResults:
        """Add rules, each on its own."""
        results = await self._metadata.ask(CreateAcls(acls=tuple(acls)))
        for acl, failure in zip(acls, results.failures, strict=True):
            self._changed(Operation.CREATE, "acl", acl.name, str(acl), failure)
        return results

    async def delete_acls(self, filters: Collection[AclFilter]) -> DeletedAcls:
        """Remove the rules that match filters."""
        deleted = await self._metadata.ask(DeleteAcls(filters=tuple(filters)))
        for matches in deleted.matches:
            for acl in matches:
                self._changed(Operation.DELETE, "acl", acl.name, str(acl))
        return deleted

    # Tenants.

    def tenants(self) -> Mapping[str, Tenant]:
        return self._metadata.image.tenants

    def tenant(self, tenant_id: str) -> Tenant:
        """Return a tenant. Raises UnknownTenant."""
        if (tenant := self._metadata.image.tenants.get(tenant_id)) is None:
            raise UnknownTenant(f"no tenant has the id {tenant_id!r}")
        return tenant

    def members(self, tenant: str) -> list[Member]:
        """Return the principals of a tenant, sorted."""
        members = (each for each in self._metadata.image.members.values() if each.tenant == tenant)
        return sorted(members, key=lambda each: each.principal)

    async def create_tenant(self, tenant_id: str, *, description: str, limits: TenantLimits) -> Tenant:
        tenant = Tenant(id=tenant_id, created_ms=self._clock.now_ms(), description=description, limits=limits)
        created = await self._metadata.ask(CreateTenant(tenant=tenant))
        given = {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
        self._changed(Operation.CREATE, "tenant", tenant_id, _limits_text(given))
        return created

    async def alter_tenant(self, change: AlterTenant) -> Tenant:
        altered = await self._metadata.ask(change)
        parts = [
            "" if change.status is None else f"status={change.status}",
            "" if change.description is None else "description",
            _limits_text(change.limits) if change.limits else "",
        ]
        self._changed(Operation.ALTER, "tenant", change.id, ", ".join(filter(None, parts)))
        return altered

    async def delete_tenant(self, tenant_id: str) -> Tenant:
        """Delete a tenant that is disabled; see `administration.delete_tenant`."""
        deleted = await self._metadata.ask(DeleteTenant(id=tenant_id, is_disabled=True))
        self._changed(Operation.DELETE, "tenant", tenant_id, "")
        return deleted

    async def add_member(self, tenant: str, principal: str, *, is_admin: bool) -> Member:
        """Make a principal a member of a tenant. A super user would lose the rights to everything else."""
        if Principal.parse(principal) in self.settings.super_users:
            raise InvalidTenant(f"{principal} is a super user (security.super_users)")
        member = Member(principal=principal, tenant=tenant, is_admin=is_admin)
        added = await self._metadata.ask(AddMember(member=member))
        role = "administrator" if is_admin else "member"
        self._changed(Operation.CREATE, "member", principal, f"{role} of {tenant}")
        return added

    async def remove_member(self, tenant: str, principal: str) -> Member:
        removed = await self._metadata.ask(RemoveMember(tenant=tenant, principal=principal))
        self._changed(Operation.DELETE, "member", principal, f"of {tenant}")
        return removed

    # API keys.

    def api_keys(self) -> Mapping[str, ApiKey]:
        return self._metadata.image.api_keys

    async def create_api_key(
        self, owner: str, *, expires_ms: int | None, scopes: Collection[Operation], description: str
    ) -> tuple[ApiKey, str]:
        """Create a key; return it, and its text, which is not stored."""
        key, text = self._new_key(
            owner=owner, expires_ms=expires_ms, scopes=tuple(scopes), description=description
        )
        created = await self._metadata.ask(CreateApiKey(key=key))
        self._changed(Operation.CREATE, "key", created.id, f"of {owner}")
        return created, text

    async def rotate_api_key(self, old: ApiKey, *, overlap_ms: int) -> tuple[ApiKey, str]:
        """Create a key that replaces another, which ends after a time; return it, and its text."""
        now_ms = self._clock.now_ms()
        expires_ms = None if old.expires_ms is None else now_ms + old.expires_ms - old.created_ms
        key, text = self._new_key(
            owner=old.owner, expires_ms=expires_ms, scopes=old.scopes, description=old.description
        )
        command = RotateApiKey(key_id=old.id, key=key, expires_ms=now_ms + overlap_ms)
        created = await self._metadata.ask(command)
        self._changed(Operation.ALTER, "key", old.id, f"of {old.owner}, replaced by {created.id}")
        return created, text

    def _new_key(
        self, *, owner: str, expires_ms: int | None, scopes: tuple[Operation, ...], description: str
    ) -> tuple[ApiKey, str]:
        secret = api_keys.new_secret(secrets.token_bytes(api_keys.SECRET_BYTES))
        key = ApiKey(
            id=api_keys.new_id(secrets.token_bytes(api_keys.ID_BYTES)),
            owner=owner,
            aws_secret=api_keys.aws_secret_of(secret),
            created_ms=self._clock.now_ms(),
            expires_ms=expires_ms,
            scopes=scopes,
            description=description,
        )
        return key, api_keys.text_of(key.id, secret)

    async def delete_api_key(self, key_id: str) -> ApiKey:
        deleted = await self._metadata.ask(DeleteApiKey(key_id=key_id))
        self._changed(Operation.DELETE, "key", key_id, f"of {deleted.owner}")
        return deleted

    def _changed(
        self, operation: Operation, kind: str, name: str, detail: str, failure: Failure | None = None
    ) -> None:
        if self.audit is not None:
            reason = "" if failure is None else str(failure.to_error())
            self.audit.changed(operation, kind, name, detail, reason)

    def audit_login(self, name: str, host: str, how: str, failure: str = "", key: str = "") -> None:
        """Record a login, or why it failed."""
        if self.audit is not None:
            self.audit.login(str(user(name)) if name else "", host, how, failure, key)

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


class TenantAuthorizer:
    """Decides what members of a tenant may do: only inside it, and there by its own rules."""

    def __init__(self, tenant: Tenant, authorizer: Authorizer | None) -> None:
        """Without an authorizer, everything is allowed inside the tenant."""
        self._is_active = tenant.is_active
        self._authorizer = authorizer
        self._prefixes = {
            ResourceType.TOPIC: names.topic_of(tenant.id, ""),
            ResourceType.GROUP: names.id_of(tenant.id, ""),
            ResourceType.TRANSACTIONAL_ID: names.id_of(tenant.id, ""),
        }

    def may(self, caller: Caller, operation: Operation, kind: ResourceType, name: str) -> bool:
        if not self._is_active:
            return False
        if (prefix := self._prefixes.get(kind)) is None:
            if kind is not ResourceType.CLUSTER or operation not in CLUSTER_OPERATIONS:
                return False
        elif name.startswith(prefix):
            name = name[len(prefix) :]
        elif name:  # an empty name is no resource: it is refused as invalid
            return False
        authorizer = self._authorizer
        return authorizer is None or authorizer.may(caller.name, caller.host, operation, kind, name)

    def may_any(self, caller: Caller, operation: Operation, kind: ResourceType) -> bool:
        if not self._is_active or kind not in self._prefixes:
            return False
        authorizer = self._authorizer
        return authorizer is None or authorizer.may_any(caller.name, caller.host, operation, kind)

    def may_whole(self, caller: Caller, operation: Operation) -> bool:
        """Return whether a member may do something to the tenant as a whole, such as see its rules."""
        authorizer, kind = self._authorizer, ResourceType.CLUSTER
        return self._is_active and (
            authorizer is None or authorizer.may(caller.name, caller.host, operation, kind, CLUSTER_NAME)
        )


def _limits_text(limits: Mapping[str, int | None]) -> str:
    return "limits: " + (", ".join(f"{name}={value}" for name, value in limits.items()) or "none")


def denied(operation: Operation, kind: ResourceType, name: str) -> AlpacaError:
    """Return the error of an operation that a client may not do."""
    return _ERRORS[kind](f"{operation.name} is not allowed on {describe(kind, name)}")


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
        network = _network(host)
        self._failures[network] = (max(0.0, self._left_over(host) + failures), self._now())
        self._failures.move_to_end(network)
        if len(self._failures) > MAX_FAILED_ADDRESSES:
            self._failures.popitem(last=False)

    def _left_over(self, host: str) -> float:
        count, counted_at = self._failures.get(_network(host), (0.0, 0.0))
        return max(0.0, count - (self._now() - counted_at) * FAILURES_PER_SECOND)


def _network(host: str) -> str:
    """Return what counts as one address: one client may have all of the last 64 bits of IPv6."""
    if ":" not in host:
        return host
    try:
        return str(IPv6Address(host).packed[:8].hex())
    except ValueError:
        return host
