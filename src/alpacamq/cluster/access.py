"""Decisions about users, access rules and API keys, on the pending image."""

from alpacamq.model.errors import (
    AlpacaError,
    FeatureNotEnabled,
    InvalidRequest,
    UnknownApiKey,
    UnknownUser,
)
from alpacamq.security.acls import Acl, check_acl, check_filter
from alpacamq.security.api_keys import ApiKey, check_description
from alpacamq.security.principals import check_user_name
from alpacamq.security.scram import check_parameters
from alpacamq.security.users import User

from .commands import (
    MAX_SECURITY_CHANGES,
    AlterUsers,
    CreateAcls,
    CreateApiKey,
    DeleteAcls,
    DeleteApiKey,
    DeletedAcls,
    EditResults,
    Failure,
    UserEdit,
)
from .decisions import Pending
from .image import (
    FEATURES,
    SECURITY_LEVEL,
    VERSION_FEATURE,
    ClusterImage,
    acl_change,
    acl_removal,
    api_key_change,
    api_key_removal,
    feature_change,
    salt_secret_change,
    user_change,
    user_removal,
)

# Of one cluster, so that the image stays small.
MAX_USERS = 100_000
MAX_ACLS = 100_000
MAX_API_KEYS = 100_000


class AccessControl:
    """Changes users, access rules and API keys of the pending image."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    @property
    def _image(self) -> ClusterImage:
        return self._pending.image

    def alter_users(self, command: AlterUsers) -> EditResults:
        _check_count(len(command.edits), "credentials")
        self._enable()
        failures: list[Failure | None] = []
        for edit in command.edits:
            try:
                self._alter_user(edit)
                failures.append(None)
            except AlpacaError as error:
                failures.append(Failure.of(error))
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

    def delete_api_key(self, command: DeleteApiKey) -> ApiKey:
        key = self._image.api_keys.get(command.key_id)
        if key is None:
            raise UnknownApiKey(f"no API key has the id {command.key_id!r}")
        self._pending.put(api_key_removal(key.id))
        return key

    def _enable(self) -> None:
        """Raise FeatureNotEnabled if some broker could not read the records.

        A cluster of one broker goes to the level by itself: no other is left behind.
        """
        level = self._image.features.get(VERSION_FEATURE, 0)
        if level >= SECURITY_LEVEL:
            return
        brokers = list(self._image.brokers.values())
        if len(brokers) > 1:
            raise FeatureNotEnabled(
                f"users, access rules and API keys need level {SECURITY_LEVEL} of {VERSION_FEATURE}, and the "
                f"cluster is at level {level}; run 'alpacactl cluster upgrade' once all nodes are upgraded"
            )
        self._pending.put(feature_change(VERSION_FEATURE, FEATURES[VERSION_FEATURE].max_level))


def _check_count(count: int, what: str) -> None:
    if count > MAX_SECURITY_CHANGES:
        raise InvalidRequest(f"at most {MAX_SECURITY_CHANGES} {what} at once, not {count}")
