"""Decisions about users, access rules, API keys, quotas, tokens and sessions, on the pending image."""

from itertools import islice

import msgspec

from alpacamq.model.errors import (
    AlpacaError,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    FeatureNotEnabled,
    InvalidAcl,
    InvalidRequest,
    UnknownApiKey,
    UnknownUser,
)
from alpacamq.security.acls import Acl, check_acl, check_filter
from alpacamq.security.api_keys import ApiKey, check_description
from alpacamq.security.delegation_tokens import DelegationToken
from alpacamq.security.principals import check_user_name
from alpacamq.security.quotas import QuotaEdit, edited, entity_id, entity_of
from alpacamq.security.scram import check_parameters
from alpacamq.security.sessions import EndedSession, EndedSessions
from alpacamq.security.users import User

from .commands import (
    MAX_SECURITY_CHANGES,
    AlterQuotas,
    AlterUsers,
    CreateAcls,
    CreateApiKey,
    CreateDelegationToken,
    DeleteAcls,
    DeleteApiKey,
    DeletedAcls,
    Done,
    EditResults,
    EnableSessions,
    EndSession,
    ExpireDelegationToken,
    Failure,
    RenewDelegationToken,
    RotateApiKey,
    UserEdit,
)
from .decisions import Pending
from .image import (
    FEATURES,
    QUOTA_LEVEL,
    SECURITY_LEVEL,
    SESSION_LEVEL,
    TOKEN_LEVEL,
    VERSION_FEATURE,
    ClusterImage,
    acl_change,
    acl_removal,
    api_key_change,
    api_key_removal,
    delegation_token_change,
    delegation_token_removal,
    ended_sessions_change,
    ended_sessions_removal,
    feature_change,
    quota_change,
    quota_removal,
    salt_secret_change,
    session_secret_change,
    user_change,
    user_removal,
)

# Of one cluster, so that the image stays small.
MAX_USERS = 100_000
MAX_ACLS = 100_000
MAX_API_KEYS = 100_000
MAX_QUOTAS = 100_000
MAX_DELEGATION_TOKENS = 10_000
MAX_TOKENS_OF_OWNER = 1_000
# Sessions that were ended by a logout and are listed one by one, of a user and of all.
MAX_ENDED_OF_USER = 100
MAX_ENDED_SESSIONS = 10_000
# How long an ended session is known beyond its time, because the clocks of nodes differ.
ENDED_MARGIN_MS = 3_600_000
MAX_SESSION_MS = 2**31
# Expired tokens, and users without ended sessions, that are removed at once.
REMOVED_AT_ONCE = 1_000


class AccessControl:
    """Changes users, access rules, API keys, quotas, delegation tokens and sessions of the pending image."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    @property
    def _image(self) -> ClusterImage:
        return self._pending.image

    def alter_users(self, command: AlterUsers) -> EditResults:
        _check_count(len(command.edits), "credentials")
        self._enable()
        failures: list[Failure | None] = []
        before = {edit.name for edit in command.edits if edit.name in self._image.users}
        for edit in command.edits:
            try:
                self._alter_user(edit)
                failures.append(None)
            except AlpacaError as error:
                failures.append(Failure.of(error))
        # A key acts for its owner: it ends with it.
        if deleted := before - self._image.users.keys():
            owned = [key.id for key in self._image.api_keys.values() if key.owner in deleted]
            self._pending.put(*map(api_key_removal, owned))
        if self._image.users and not self._image.salt_secret:
            self._pending.put(salt_secret_change(command.salt_secret))
        return EditResults(tuple(failures))

    def _alter_user(self, edit: UserEdit) -> None:
        user = self._image.users.get(edit.name)
        if edit.credential is None:
            self._delete_credential(user, edit)
            return
        check_user_name(edit.name)
        check_parameters(edit.credential.salt, edit.credential.iterations)
        if edit.mechanism is None:
            raise InvalidRequest("a credential needs a mechanism")
        if user is None:
            if len(self._image.users) >= MAX_USERS:
                raise InvalidRequest(f"a cluster has at most {MAX_USERS} users")
            user = User(name=edit.name, credentials={})
        self._pending.put(user_change(user.with_credential(edit.mechanism, edit.credential)))

    def _delete_credential(self, user: User | None, edit: UserEdit) -> None:
        if user is None:
            raise UnknownUser(f"no user is named {edit.name!r}")
        if edit.mechanism is None:
            self._pending.put(user_removal(user.name))
            return
        if edit.mechanism not in user.credentials:
            raise UnknownUser(f"user {edit.name!r} has no credential of {edit.mechanism}")
        left = user.without_credential(edit.mechanism)
        self._pending.put(user_change(left) if left.credentials else user_removal(user.name))

    def create_acls(self, command: CreateAcls) -> EditResults:
        _check_count(len(command.acls), "access rules")
        self._enable()
        failures: list[Failure | None] = []
        for acl in command.acls:
            try:
                self._create_acl(acl)
                failures.append(None)
            except AlpacaError as error:
                failures.append(Failure.of(error))
        return EditResults(tuple(failures))

    def _create_acl(self, acl: Acl) -> None:
        check_acl(acl)
        if acl.tenant and acl.tenant not in self._image.tenants:
            raise InvalidAcl(f"no tenant has the id {acl.tenant!r}")
        if acl.id not in self._image.acls:
            if len(self._image.acls) >= MAX_ACLS:
                raise InvalidRequest(f"a cluster has at most {MAX_ACLS} access rules")
            self._pending.put(acl_change(acl))

    def delete_acls(self, command: DeleteAcls) -> DeletedAcls:
        _check_count(len(command.filters), "filters")
        for wanted in command.filters:
            check_filter(wanted)
        deleted = []
        for wanted in command.filters:
            matches = tuple(acl for acl in self._image.acls.values() if wanted.matches(acl))
            self._pending.put(*map(acl_removal, matches))
            deleted.append(matches)
        return DeletedAcls(tuple(deleted))

    def create_api_key(self, command: CreateApiKey) -> ApiKey:
        key = command.key
        if self._image.api_keys.get(key.id) == key:
            return key
        check_description(key.description)
        check_user_name(key.owner)
        if key.id in self._image.api_keys:
            raise InvalidRequest("an API key of this id exists already")
        if len(self._image.api_keys) >= MAX_API_KEYS:
            raise InvalidRequest(f"a cluster has at most {MAX_API_KEYS} API keys")
        self._enable()
        self._pending.put(api_key_change(key))
        return key

    def rotate_api_key(self, command: RotateApiKey) -> ApiKey:
        old = self._image.api_keys.get(command.key_id)
        if old is None:
            raise UnknownApiKey(f"no API key has the id {command.key_id!r}")
        created = self.create_api_key(CreateApiKey(key=command.key))
        if old.expires_ms is None or old.expires_ms > command.expires_ms:
            self._pending.put(api_key_change(msgspec.structs.replace(old, expires_ms=command.expires_ms)))
        return created

    def delete_api_key(self, command: DeleteApiKey) -> ApiKey:
        key = self._image.api_keys.get(command.key_id)
        if key is None:
            raise UnknownApiKey(f"no API key has the id {command.key_id!r}")
        self._pending.put(api_key_removal(key.id))
        return key

    def alter_quotas(self, command: AlterQuotas) -> EditResults:
        _check_count(len(command.edits), "quotas")
        if not command.dry_run:
            self._enable(QUOTA_LEVEL, "quotas")
        failures: list[Failure | None] = []
        for edit in command.edits:
            try:
                self._alter_quota(edit, dry_run=command.dry_run)
                failures.append(None)
            except AlpacaError as error:
                failures.append(Failure.of(error))
        return EditResults(tuple(failures))

    def _alter_quota(self, edit: QuotaEdit, *, dry_run: bool) -> None:
        entity = entity_of(edit.entity)
        former = self._image.quotas.get(entity_id(entity))
        quota = edited(former, edit)
        if former is None and quota is not None and len(self._image.quotas) >= MAX_QUOTAS:
            raise InvalidRequest(f"a cluster has quotas of at most {MAX_QUOTAS} entities")
        if quota == former or dry_run:
            return
        self._pending.put(quota_removal(entity) if quota is None else quota_change(quota))

    def create_delegation_token(self, command: CreateDelegationToken, time_ms: int) -> DelegationToken:
        """Create a token; `time_ms` is the cluster time, as in all decisions about tokens."""
        tokens = self._image.delegation_tokens
        known = tokens.get(command.id)
        if known is not None and known.hmac_hash == command.hmac_hash:
            return known
        if known is not None or self._image.delegation_token_by_hash(command.hmac_hash) is not None:
            raise InvalidRequest("a delegation token of this id exists already")
        if len(tokens) >= MAX_DELEGATION_TOKENS:
            raise InvalidRequest(f"a cluster has at most {MAX_DELEGATION_TOKENS} delegation tokens")
        if sum(token.owner == command.owner for token in tokens.values()) >= MAX_TOKENS_OF_OWNER:
            raise InvalidRequest(f"an owner has at most {MAX_TOKENS_OF_OWNER} delegation tokens")
        self._enable(TOKEN_LEVEL, "delegation tokens")
        max_ms = time_ms + command.max_lifetime_ms
        token = DelegationToken(
            id=command.id,
            owner=command.owner,
            requester=command.requester,
            renewers=command.renewers,
            issued_ms=time_ms,
            expires_ms=min(max_ms, time_ms + command.renew_ms),
            max_ms=max_ms,
            hmac_hash=command.hmac_hash,
            credentials=command.credentials,
        )
        self._pending.put(delegation_token_change(token))
        return token

    def renew_delegation_token(self, command: RenewDelegationToken, time_ms: int) -> DelegationToken:
        token = self._delegation_token(command.hmac_hash)
        _check_not_expired(token, time_ms)
        _check_renewer(token, command.principal)
        return self._end_at(token, time_ms + command.renew_ms)

    def expire_delegation_token(self, command: ExpireDelegationToken, time_ms: int) -> DelegationToken:
        token = self._delegation_token(command.hmac_hash)
        _check_renewer(token, command.principal)
        if command.expire_ms < 0:
            self._pending.put(delegation_token_removal(token.id))
            return msgspec.structs.replace(token, expires_ms=time_ms)
        _check_not_expired(token, time_ms)
        return self._end_at(token, time_ms + command.expire_ms)

    def remove_expired_tokens(self, time_ms: int) -> None:
        expired = (token.id for token in self._image.delegation_tokens.values() if token.is_expired(time_ms))
        self._pending.put(*map(delegation_token_removal, list(islice(expired, REMOVED_AT_ONCE))))

    def enable_sessions(self, command: EnableSessions) -> Done:
        self._check_session_level()
        if not self._image.session_secret:
            self._pending.put(session_secret_change(command.secret))
        return Done()

    def end_session(self, command: EndSession, time_ms: int) -> Done:
        """End a session. Of a user with too many of them, all that began before end."""
        self._check_session_level()
        check_user_name(command.user)
        known = self._image.ended_sessions.get(command.user) or EndedSessions(user=command.user)
        if any(each.id == command.id for each in known.sessions):
            return Done()
        end_ms = time_ms + min(max(command.remaining_ms, 0), MAX_SESSION_MS) + ENDED_MARGIN_MS
        listed = sum(len(each.sessions) for each in self._image.ended_sessions.values())
        max_listed = MAX_ENDED_OF_USER if listed < MAX_ENDED_SESSIONS else 0
        ended = EndedSession(command.id, command.began_ms, end_ms)
        self._pending.put(ended_sessions_change(known.with_session(ended, max_listed)))
        return Done()

    def _check_session_level(self) -> None:
        # Unlike an administrator, a browser does not raise the level of a cluster.
        if self._image.features.get(VERSION_FEATURE, 0) < SESSION_LEVEL:
            raise FeatureNotEnabled(f"stored sessions need level {SESSION_LEVEL} of {VERSION_FEATURE}")

    def remove_ended_sessions(self, time_ms: int) -> None:
        """Forget the ended sessions that would have ended by themselves."""
        changed = 0
        for ended in list(self._image.ended_sessions.values()):
            left = ended.remaining(time_ms)
            if left is ended:
                continue
            self._pending.put(
                ended_sessions_removal(ended.user) if left is None else ended_sessions_change(left)
            )
            changed += 1
            if changed >= REMOVED_AT_ONCE:
                break

    def _delegation_token(self, hmac_hash: str) -> DelegationToken:
        token = self._image.delegation_token_by_hash(hmac_hash)
        if token is None:
            raise DelegationTokenNotFound("no delegation token has this HMAC")
        return token

    def _end_at(self, token: DelegationToken, end_ms: int) -> DelegationToken:
        changed = msgspec.structs.replace(token, expires_ms=min(token.max_ms, end_ms))
        self._pending.put(delegation_token_change(changed))
        return changed

    def _enable(self, needed: int = SECURITY_LEVEL, what: str = "users, access rules and API keys") -> None:
        enable(self._pending, needed, what)


def enable(pending: Pending, needed: int, what: str) -> None:
    """Raise FeatureNotEnabled if some broker could not read records of this level.

    A cluster of one broker goes to the level by itself: no other is left behind.
    """
    level = pending.image.features.get(VERSION_FEATURE, 0)
    if level >= needed:
        return
    if len(pending.image.brokers) > 1:
        raise FeatureNotEnabled(
            f"{what} need level {needed} of {VERSION_FEATURE}, and the "
            f"cluster is at level {level}; run 'alpacactl cluster upgrade' once all nodes are upgraded"
        )
    pending.put(feature_change(VERSION_FEATURE, FEATURES[VERSION_FEATURE].max_level))


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.may_be_renewed_by(principal):
        raise DelegationTokenOwnerMismatch(
            f"{principal} is neither the owner nor a renewer of the delegation token"
        )


def _check_not_expired(token: DelegationToken, time_ms: int) -> None:
    if token.is_expired(time_ms):
        raise DelegationTokenExpired("the delegation token has expired")


def _check_count(count: int, what: str) -> None:
    if count > MAX_SECURITY_CHANGES:
        raise InvalidRequest(f"at most {MAX_SECURITY_CHANGES} {what} at once, not {count}")
