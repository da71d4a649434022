"""Subjects as clients name them, as the registry stores them, and the topics whose rights they have."""

from alpacamq.model.names import topic_of
from alpacamq.registry.errors import InvalidSubject
from alpacamq.registry.messages import SchemaVersion
from alpacamq.registry.schema import Reference
from alpacamq.registry.subjects import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    SubjectName,
    split_context,
    split_subject,
    tenant_context,
)

# What serializers add to the name of a topic.
_SUFFIXES = ("-key", "-value")


class Names:
    """The names of one client: of a tenant or none, and of the context in the path of its request."""

    __slots__ = ("context", "tenant")

    def __init__(self, tenant: str | None, context: str = DEFAULT_CONTEXT) -> None:
        self.tenant = tenant
        self.context = context

    def stored(self, subject: str) -> str:
        """Return the stored name of a subject or context."""
        if subject.startswith(ANY_CONTEXT):
            raise InvalidSubject(f"invalid subject {subject!r}: no schema can be registered in this context")
        named = split_subject(subject)
        context = named.context if subject.startswith(":.") else self.context
        return str(SubjectName(self._stored_context(context), named.name))

    def _stored_context(self, context: str) -> str:
        return context if self.tenant is None else tenant_context(self.tenant, context)

    def scope(self, subject: str | None = None) -> str | None:
        """Return what a setting is for, or where an id is looked up: None is the default context."""
        return self.stored(subject or "") or None

    def prefix(self, prefix: str) -> str:
        """Return the beginning of the stored names in a list; further ones are left out with `local`."""
        if prefix.startswith(ANY_CONTEXT):
            if self.context != DEFAULT_CONTEXT:
                return self.stored(prefix.removeprefix(ANY_CONTEXT))
            return prefix if self.tenant is None else f":{self._stored_context(DEFAULT_CONTEXT)}"
        if prefix.startswith(":.") and prefix.count(":") == 1:
            # The beginning of the name of a context.
            return prefix if self.tenant is None else f":{self._stored_context(prefix[1:])}"
        return self.stored(prefix) if prefix or self.is_qualified else prefix

    @property
    def is_qualified(self) -> bool:
        """Whether names without a context are not stored as they are."""
        return self.tenant is not None or self.context != DEFAULT_CONTEXT

    def reference(self, subject: str) -> str:
        """Return the stored form of a subject that a schema refers to, or that an alias stands for.

        Without a context it is one of the context of the schema.
        """
        named = split_subject(subject)
        if self.tenant is None or named.context == DEFAULT_CONTEXT:
            return subject
        return str(SubjectName(self._stored_context(named.context), named.name))

    def is_own(self, stored: str) -> bool:
        """Return whether a subject is one of the client's tenant, if it has one."""
        return self.tenant is None or split_context(split_subject(stored).context)[0] == self.tenant

    def local(self, stored: str) -> str:
        """Return a subject as the client names it."""
        if self.tenant is None:
            return stored
        named = split_subject(stored)
        tenant, context = split_context(named.context)
        return str(SubjectName(context, named.name)) if tenant == self.tenant else stored

    def local_version(self, version: SchemaVersion) -> tuple[str, tuple[Reference, ...]]:
        """Return the subject and the references of a version as the client names them."""
        if self.tenant is None:
            return version.subject, version.references
        references = (
            Reference(each.name, self.local(each.subject), each.version) for each in version.references
        )
        return self.local(version.subject), tuple(references)

    def local_text(self, text: str) -> str:
        """Return a message as the client names things."""
        if self.tenant is None:
            return text
        stored = tenant_context(self.tenant, DEFAULT_CONTEXT)
        text = text.replace(f":{stored}:", "").replace(f":{stored}.", ":.")
        return text.replace(f"'{stored}'", "'.'").replace(f"'{stored}.", "'.")


def topic_of_subject(stored: str) -> str | None:
    """Return the topic whose rights a subject has; None for a context, which has those of the cluster.

    That is the topic of the topic-name strategy; for other subjects, a topic with their name.
    """
    named = split_subject(stored)
    if not named.name:
        return None
    topic = named.name
    for suffix in _SUFFIXES:
        if topic.endswith(suffix) and topic != suffix:
            topic = topic.removesuffix(suffix)
            break
    tenant, _ = split_context(named.context)
    return topic if tenant is None else topic_of(tenant, topic)
