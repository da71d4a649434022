"""Options that Spark's own source and sink pass to Kafka's Java client: `kafka.` and a client setting.

Those that mean something to this connector are honoured: here, authentication and TLS. Others have no effect
and are accepted, unless ignoring them would be unsafe: records would go elsewhere or be other records, or the
connection would be protected less than requested.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from alpacamq.client.connect import Tls
from alpacamq.client.kafka.connection import MECHANISMS, Login

from .errors import InvalidOption

Get = Callable[[str], str | None]

CLIENT_PREFIX = "kafka."
_PROTOCOL = "kafka.security.protocol"
_MECHANISM = "kafka.sasl.mechanism"
_JAAS = "kafka.sasl.jaas.config"
_TRUSTED, _TRUSTED_TYPE = "kafka.ssl.truststore.location", "kafka.ssl.truststore.type"
_OWN, _OWN_TYPE = "kafka.ssl.keystore.location", "kafka.ssl.keystore.type"
SECURITY_OPTIONS = (_PROTOCOL, _MECHANISM, _JAAS, _TRUSTED, _TRUSTED_TYPE, _OWN, _OWN_TYPE)
# Settings that Kafka's client does not use with another protocol, either.
_OF_SASL, _OF_TLS = "kafka.sasl.", "kafka.ssl."
_LOGIN_MODULE = re.compile(
    r"""\s* [\w.]*\.(?:Plain|Scram)LoginModule \s+ required \s+ (?P<options>.*) ; \s*""",
    re.VERBOSE | re.DOTALL,
)
_LOGIN_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))""")

_OWN_SECURITY = ("user", "passwordFile", "tls", "caFile", "certFile", "keyFile")
_NO_SUCH_LOGIN = f"the login is set by {_MECHANISM} and {_JAAS}, or by user and passwordFile"
_NO_SUCH_TLS = (
    f"TLS is set by {_PROTOCOL}, {_TRUSTED} and {_OWN}, files in PEM format, or by tls, caFile, certFile and "
    "keyFile"
)
# Why an option is refused that would otherwise be ignored, and what to use instead.
_REFUSED_READING: Mapping[str, str] = {
    "kafka.auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "kafka.interceptor.classes": "there is no Java client that could run them",
    "kafka.key.deserializer": "columns are binary; convert them in the query",
    "kafka.value.deserializer": "columns are binary; convert them in the query",
}
_REFUSED_WRITING: Mapping[str, str] = {
    "kafka.interceptor.classes": "there is no Java client that could run them",
    "kafka.key.serializer": "write binary or string columns, or use the option encode",
    "kafka.value.serializer": "write binary or string columns, or use the option encode",
    "kafka.partitioner.class": "rows go to the partition of their key; use the column partition for another",
    "kafka.transactional.id": "use transactionalId",
}
# Values that ask for what the connector does anyway.
_AS_ALWAYS: Mapping[str, frozenset[str]] = {
    "kafka.acks": frozenset({"all", "-1"}),
    "kafka.enable.idempotence": frozenset({"true"}),
    "kafka.enable.auto.commit": frozenset({"false"}),
    "kafka.partitioner.ignore.keys": frozenset({"false"}),
    "kafka.ssl.endpoint.identification.algorithm": frozenset({"https"}),
}
# Ignoring these is safe, although others that begin like them are refused: the connector verifies more, or
# files in PEM format do not need them.
_HARMLESS_SECURITY = frozenset(
    {
        "kafka.ssl.endpoint.identification.algorithm",
        "kafka.ssl.keystore.password",
        "kafka.ssl.truststore.password",
        "kafka.ssl.protocol",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The security of the connection that options of Kafka's client describe, if any does.

    `unused` are the options among them that do not apply with the protocol, as in Kafka's client.
    """

    is_given: bool
    login: Login | None = None
    tls: Tls | None = None
    unused: tuple[str, ...] = ()


def has_effect(name: str, value: str, *, is_read: bool) -> bool:
    """Return whether an option for Kafka's client asks for what the connector does.

    Raises InvalidOption if ignoring it would be unsafe.
    """
    if value.strip().lower() in _AS_ALWAYS.get(name, ()):
        return True
    refused = _REFUSED_READING if is_read else _REFUSED_WRITING
    if name in refused:
        raise InvalidOption(f"{name} is not supported: {refused[name]}")
    if name == "kafka.partitioner.ignore.keys" and not is_read:
        raise InvalidOption(f"{name}={value} is not supported: {_REFUSED_WRITING['kafka.partitioner.class']}")
    return False


def kafka_security(get: Get, others: Iterable[str]) -> Security:
    """Return the security that options of Kafka's client describe.

    `others` are the options for Kafka's client without a meaning here. Raises InvalidOption.
    """
    protocol = get(_PROTOCOL)
    sasl, _, transport = (protocol or "PLAINTEXT").strip().upper().rpartition("_")
    if sasl not in ("", "SASL") or transport not in ("PLAINTEXT", "SSL"):
        raise InvalidOption(f"{_PROTOCOL}={protocol!r} is not PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    used = (*((_OF_SASL,) if sasl else ()), *((_OF_TLS,) if transport == "SSL" else ()))
    unused = [name for name in SECURITY_OPTIONS if name != _PROTOCOL and not name.startswith(used)]
    unused = [name for name in unused if get(name) is not None]
    if protocol is None:
        return Security(is_given=False, unused=tuple(unused))
    if any(get(name) is not None for name in _OWN_SECURITY):
        raise InvalidOption(f"kafka.security.protocol and {', '.join(_OWN_SECURITY)} exclude each other")
    for name in others:
        if name.startswith(used) and name not in _HARMLESS_SECURITY:
            advice = _NO_SUCH_TLS if name.startswith(_OF_TLS) else _NO_SUCH_LOGIN
            raise InvalidOption(f"{name} is not supported, and ignoring it could be unsafe: {advice}")
    return Security(
        is_given=True,
        login=_login(get) if _OF_SASL in used else None,
        tls=_tls(get) if _OF_TLS in used else None,
        unused=tuple(unused),
    )


def _login(get: Get) -> Login:
    mechanism = (get(_MECHANISM) or "GSSAPI").strip().upper()
    if mechanism not in MECHANISMS:
        raise InvalidOption(f"{_MECHANISM}={mechanism} is not one of {', '.join(MECHANISMS)}")
    found = _LOGIN_MODULE.fullmatch(get(_JAAS) or "")
    named = {} if found is None else _login_options(found["options"])
    if "username" not in named or "password" not in named:
        # Without the value, which may contain a password.
        raise InvalidOption(
            f"{_JAAS} must be like: org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="ann" password="…";'
        )
    return Login(user=named["username"], password=named["password"], mechanism=mechanism)


def _login_options(text: str) -> dict[str, str]:
    return {
        name: plain or re.sub(r"\\(.)", r"\1", quoted) for name, quoted, plain in _LOGIN_OPTION.findall(text)
    }


def _tls(get: Get) -> Tls:
    for place, kind in ((_TRUSTED, _TRUSTED_TYPE), (_OWN, _OWN_TYPE)):
        given = (get(kind) or "JKS").strip()
        if get(place) is not None and given.upper() != "PEM":
            raise InvalidOption(
                f"{place}={get(place)}: {kind}={given} is not supported, only PEM. Convert the store to a "
                "PEM file, for instance with keytool and openssl"
            )
    return Tls(ca=get(_TRUSTED), certificate=get(_OWN))
