"""Subject names and contexts.

A subject in a context other than the default one is called `:.context:name`. The name of a context begins
with a dot; the default context is `.` and is left out of names. In settings, `:.context:` stands for all
subjects of a context, and `:.__GLOBAL:` for all contexts.

The subjects of a tenant are in contexts of their own: `.@tenant` is its default context, and `.@tenant.name`
one that it names. The API adds the first part to every name that a tenant's client sends.
"""

from typing import Final, NamedTuple

from .errors import InvalidSubject

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
ANY_CONTEXT: Final = ":*:"
MAX_SUBJECT_LENGTH: Final = 1000
_TENANT_MARK: Final = ".@"
# Confluent's registry uses them as resource names for permissions.
_RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})


class SubjectName(NamedTuple):
    """A subject's context, and its name there; empty for the context itself."""

    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"


GLOBAL_SCOPE: Final = str(SubjectName(GLOBAL_CONTEXT, ""))


def split_subject(subject: str) -> SubjectName:
    """Split a subject into its context and its name there."""
    if not subject.startswith(":."):
        return SubjectName(DEFAULT_CONTEXT, subject)
    context, _, name = subject[1:].partition(":")
    return SubjectName(context, name)


def context_of(subject: str) -> str:
    """Return the context of a subject."""
    return split_subject(subject).context


def tenant_context(tenant: str, context: str) -> str:
    """Return the stored name of a context that a tenant's client names."""
    return f"{_TENANT_MARK}{tenant}{'' if context == DEFAULT_CONTEXT else context}"


def split_context(context: str) -> tuple[str | None, str]:
    """Return the tenant of a context, None without one, and its name in the tenant."""
    if not context.startswith(_TENANT_MARK):
        return None, context
    tenant, dot, local = context.removeprefix(_TENANT_MARK).partition(".")
    return tenant, dot + local or DEFAULT_CONTEXT


def in_context_of(parent: SubjectName, subject: str) -> str:
    """Return the whole name of a subject that a schema or alias of `parent` names."""
    named = split_subject(subject)
    return str(SubjectName(parent.context, named.name) if named.context == DEFAULT_CONTEXT else named)


def checked_subject(subject: str) -> str:
    """Return the normal form of the name of a subject that schemas are registered under.

    Raises InvalidSubject.
    """
    found = _checked(subject)
    if not found.name:
        raise InvalidSubject("invalid subject: must not be empty")
    if found.context == GLOBAL_CONTEXT or subject.startswith(ANY_CONTEXT):
        raise InvalidSubject(f"invalid subject {subject!r}: no schema can be registered in this context")
    return str(found)


def checked_scope(subject: str | None) -> str | None:
    """Return the normal form of what a setting is for: a subject, a context, or None for the default context.

    Raises InvalidSubject.
    """
    return None if subject is None else str(_checked(subject)) or None


def scopes_of(scope: str | None) -> list[str | None]:
    """Return where a setting of a subject or context is looked for, the nearest first."""
    context = DEFAULT_CONTEXT if scope is None else context_of(scope)
    nearest = dict.fromkeys((scope, str(SubjectName(context, "")) or None, GLOBAL_SCOPE))
    return list(nearest)


def covers(scope: str | None, subject: str) -> bool:
    """Return whether setting a mode for `scope` affects a subject; one for all affects no tenants."""
    if scope == subject:
        return True
    named = SubjectName(GLOBAL_CONTEXT, "") if scope is None else split_subject(scope)
    context = context_of(subject)
    is_everywhere = named.context == GLOBAL_CONTEXT and split_context(context)[0] is None
    return not named.name and (is_everywhere or named.context == context)


def _checked(subject: str) -> SubjectName:
    if len(subject) > MAX_SUBJECT_LENGTH:
        raise InvalidSubject(f"invalid subject: longer than {MAX_SUBJECT_LENGTH} characters")
    if any(ch < " " or "\x7f" <= ch <= "\x9f" or "\ud800" <= ch <= "\udfff" for ch in subject):
        raise InvalidSubject(f"invalid subject {subject!r}: must not contain control characters")
    found = split_subject(subject)
    if found.name in _RESERVED:
        raise InvalidSubject(f"invalid subject {subject!r}: the name is reserved")
    return found
