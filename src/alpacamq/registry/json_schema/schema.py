"""Parses JSON schemas."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from alpacamq.registry.schema import Dependency, Incompatibility, InvalidSchema, ParsedSchema

from . import compatibility, model, text
from .documents import Documents
from .validation import PatternMatcher, Validator, check_patterns, check_schema


class JsonSchema:
    """A valid schema."""

    def __init__(self, document: Any, documents: Documents, node: model.Node, validator: Validator) -> None:
        # The schema and its dependencies, in which references are resolved.
        self.documents = documents
        self.canonical = text.write(document)
        self.node = node
        self.mismatch = validator.mismatch
        self.decode = validator.decode
        self.encode = validator.encode
        self._document = document

    @cached_property
    def normalized(self) -> str:
        """The canonical text with sorted keys."""
        return text.write(text.ordered(self._document))

    def record_name(self, data: bytes | memoryview) -> str | None:  # noqa: ARG002 - that of the schema
        """Return the title."""
        title = self._document.get("title") if isinstance(self._document, dict) else None
        return title if isinstance(title, str) else None

    def incompatibilities(self, writer: ParsedSchema) -> Sequence[Incompatibility]:
        """Return the reasons why a reader with this schema cannot read data of `writer`."""
        assert isinstance(writer, JsonSchema)
        return compatibility.compare(writer.node, self.node, PatternMatcher().first)


def parse(schema: str, dependencies: Sequence[Dependency] = ()) -> JsonSchema:
    """Parse a schema and check it: by its meta-schema, its references, and the limits on both."""
    root = text.read(schema)
    if not isinstance(root, (dict, bool)):
        raise InvalidSchema("A JSON schema must be an object or a boolean")
    documents = Documents(root, [(each.name, text.read(each.text)) for each in dependencies], check_schema)
    check_patterns(documents.patterns)
    for document in documents.all:
        check_schema(document, ())
    node = model.build(documents)
    check_patterns(documents.patterns)  # those found by following references, too
    return JsonSchema(root, documents, node, Validator(documents, model.evaluations(node)))
