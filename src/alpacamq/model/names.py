"""Names of tenants' resources: how they are stored, and how their tenant names them.

A topic of a tenant is stored as `TENANT:NAME`, a group or transactional id as `TENANT` + U+001F + `NAME`. No
other module joins or splits them. A tenant's clients never write the first part: the APIs add it to every
name that they send, and remove it from every name that they receive. Resources without a tenant have plain
names.

A separator in a name that a tenant's client sends does not reach another tenant: the first separator, which
the API has put there, is the one that counts.
"""

import re

from .errors import InvalidTenant

TOPIC_SEPARATOR = ":"
ID_SEPARATOR = "\x1f"
MAX_TENANT_LENGTH = 32

_TENANT = re.compile(rf"[a-z0-9-]{{1,{MAX_TENANT_LENGTH}}}")
# The separator of ids as error messages quote it.
_QUOTED_SEPARATOR = repr(ID_SEPARATOR)[1:-1]


def check_tenant_id(tenant: str) -> str:
    """Return `tenant` if it can be the id of a tenant. Raises InvalidTenant."""
    if _TENANT.fullmatch(tenant) is None:
        raise InvalidTenant(
            f"invalid tenant id {tenant!r}: 1 to {MAX_TENANT_LENGTH} lower-case letters, digits and '-'"
        )
    return tenant


def topic_of(tenant: str, name: str) -> str:
    """Return the stored name of a topic of a tenant."""
    return f"{tenant}{TOPIC_SEPARATOR}{name}"


def id_of(tenant: str, name: str) -> str:
    """Return the stored name of a group or transactional id of a tenant."""
    return f"{tenant}{ID_SEPARATOR}{name}"


def split_topic(name: str) -> tuple[str | None, str]:
    """Return the tenant of a topic, None without one, and its name in the tenant."""
    return _split(name, TOPIC_SEPARATOR)


def split_id(name: str) -> tuple[str | None, str]:
    """Return the tenant of a group or transactional id, None without one, and its name in the tenant."""
    return _split(name, ID_SEPARATOR)


def _split(name: str, separator: str) -> tuple[str | None, str]:
    tenant, found, local = name.partition(separator)
    if not found or _TENANT.fullmatch(tenant) is None:
        return None, name
    return tenant, local


def local_topic(name: str) -> str:
    """Return a topic as its tenant names it."""
    return split_topic(name)[1]


def local_id(name: str) -> str:
    """Return a group or transactional id as its tenant names it."""
    return split_id(name)[1]


def topic_beside(topic: str, name: str) -> str:
    """Return the stored name of a topic that a setting of `topic`, or a message in it, names."""
    tenant, _ = split_topic(topic)
    return name if tenant is None else topic_of(tenant, name)


def topic_in_group(group: str, topic: str) -> str | None:
    """Return a topic as members of a group name it; None if it is not a topic of the group's tenant."""
    tenant, _ = split_id(group)
    if tenant is None:
        return topic
    owner, local = split_topic(topic)
    return local if owner == tenant else None


def topic_for_pattern(group: str, topic: str) -> str | None:
    """Return the name of a topic that patterns of a group's members match; None if they match no part of it.

    Patterns of groups without a tenant match topics without a tenant.
    """
    owner, local = split_topic(topic)
    return local if owner == split_id(group)[0] else None


def localized(tenant: str, text: str) -> str:
    """Return a text for a tenant's client, with its resources as it names them."""
    if tenant not in text:
        return text
    for separator in (ID_SEPARATOR, _QUOTED_SEPARATOR):
        text = text.replace(tenant + separator, "")
    return re.sub(rf"(?<![\w.-]){tenant}{TOPIC_SEPARATOR}(?=[\w.-])", "", text)
