"""Principals of client certificates: the distinguished name, and the rules that map it to a user name.

The rules are those of Kafka's `ssl.principal.mapping.rules`, in RE2 syntax: they match in linear time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from alpacamq.model.errors import InvalidConfig

from .principals import ANONYMOUS, EVERYONE, Principal, user

DEFAULT = "DEFAULT"
_RULE = "RULE:"
MAX_DISTINGUISHED_NAME = 1024
_PATTERN_BYTES = 1 << 20

# Relative distinguished names as the ssl module reports them: each a sequence of attributes and values.
Subject = Sequence[Sequence[tuple[str, str]]]

# The attributes that have a short name in RFC 2253; the others keep their long one.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ESCAPED = frozenset(',+"\\<>;')


def distinguished_name(subject: Subject) -> str:
    """Return the name of a certificate as RFC 2253 writes it, as in CN=alice,OU=shop,O=Example."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{each}" if each in _ESCAPED else each for each in value)
    if text.startswith(("#", " ")):
        text = f"\\{text}"
    if text.endswith(" ") and len(text) > 1:
        text = f"{text[:-1]}\\ "
    return text


class _Rule(NamedTuple):
    """One rule. Without a pattern it is DEFAULT: the name as it is."""

    pattern: Any
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """Return the user name; None if the rule does not match."""
        if self.pattern is None:
            return name
        if (match := self.pattern.fullmatch(name)) is None:
            return None
        groups = ("", *(group or "" for group in match.groups()))
        replaced = "".join(
            groups[part] if isinstance(part, int) else part for part in _parts(self.replacement)
        )
        return {"L": replaced.lower, "U": replaced.upper}.get(self.case, lambda: replaced)()


def _parts(replacement: str) -> Iterator[str | int]:
    """Yield the text of a replacement, and the numbers of the groups in it."""
    at = 0
    while at < len(replacement):
        character = replacement[at]
        following = replacement[at + 1 : at + 2]
        if character == "$" and following.isascii() and following.isdigit():
            yield int(following)
            at += 2
        elif character == "\\" and following:
            yield following
            at += 2
        else:
            yield character
            at += 1


class PrincipalRules:
    """The rules of a listener, tried in order; the first that matches decides."""

    def __init__(self, text: str = DEFAULT) -> None:
        """Parse rules separated by commas. Raises InvalidConfig."""
        self._rules = tuple(_parse(text))

    def principal(self, subject: Subject) -> Principal | None:
        """Return the principal of a certificate; None if no rule gives it a usable name."""
        name = distinguished_name(subject)
        if not name or len(name) > MAX_DISTINGUISHED_NAME or not name.isprintable():
            return None
        for rule in self._rules:
            if (mapped := rule.apply(name)) is not None:
                is_usable = bool(mapped) and mapped not in {ANONYMOUS.name, EVERYONE.name}
                return user(mapped) if is_usable else None
        return None


def _parse(text: str) -> Iterator[_Rule]:
    rest = text.strip()
    while True:
        if rest.startswith(DEFAULT):
            rest = rest.removeprefix(DEFAULT)
            yield _Rule(None, "", "")
        elif rest.startswith(_RULE):
            pattern, rest = _until_slash(rest.removeprefix(_RULE))
            replacement, rest = _until_slash(rest)
            case = rest[:1] if rest[:1] in ("L", "U") else ""
            rest = rest.removeprefix(case)
            yield _rule(pattern, replacement, case)
        else:
            raise InvalidConfig(f"{rest!r} is not a rule: must be DEFAULT or RULE:pattern/replacement/[LU]")
        rest = rest.lstrip()
        if not rest:
            return
        if not rest.startswith(","):
            raise InvalidConfig(f"{rest!r} follows a rule: rules are separated by commas")
        rest = rest[1:].lstrip()


def _until_slash(text: str) -> tuple[str, str]:
    """Split at the first slash without a backslash before it."""
    at = 0
    while at < len(text) and text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise InvalidConfig(f"rule {text!r} has no end: must be RULE:pattern/replacement/[LU]")
    return text[:at], text[at + 1 :]


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    import re2  # takes 15 ms, and most brokers have no such rule

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidConfig(f"pattern {pattern!r}: {error.args[0].decode(errors='replace')}") from None
    for part in _parts(replacement):
        if isinstance(part, int) and not 1 <= part <= compiled.groups:
            raise InvalidConfig(f"replacement {replacement!r}: pattern {pattern!r} has no group {part}")
    return _Rule(compiled, replacement, case)
