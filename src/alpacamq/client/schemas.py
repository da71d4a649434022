"""Schemas of a cluster's registry for codecs, over the HTTP API."""

from collections.abc import Sequence

from alpacamq.client.connect import Tls
from alpacamq.client.http import connection as http
from alpacamq.client.http.schemas import SchemaCodec, SchemaEncoder, SchemaRegistry
from alpacamq.client.login import BearerToken, Credentials
from alpacamq.model.address import Address
from alpacamq.registry.framing import unframe
from alpacamq.registry.schema import InvalidSchema, ParsedSchema
from alpacamq.security.api_keys import parse as is_api_key

from .codecs import NoSchema, Schema
from .errors import NotFound


class RegistrySchemas:
    """Looks schemas up. For one thread at a time."""

    def __init__(
        self, addresses: Sequence[Address], *, tls: Tls | None, credentials: Credentials | None
    ) -> None:
        if not addresses:
            raise NotFound("HTTP API in the cluster, which has the schema registry", "http")
        self._api = http.HttpApi(*addresses, credentials=_http_credentials(credentials), tls=tls)
        self._codec = SchemaCodec(SchemaRegistry(self._api))

    def latest(self, subject: str) -> Schema:
        """Return the latest version of a subject. Raises NotFound."""
        return _Encoding(self._codec.encoder_of(subject))

    def named_in(self, data: bytes) -> Schema:
        """Return the schema that data names. Raises NoSchema."""
        found = unframe(data)
        if found is None:
            raise NoSchema("it does not begin with the id of a schema")
        try:
            return _Decoding(self._codec.of(found.schema))
        except (NotFound, InvalidSchema) as error:
            raise NoSchema(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._api.close()


class _Encoding:
    def __init__(self, encoder: SchemaEncoder) -> None:
        self._encoder = encoder

    def encode(self, value: object) -> bytes:
        return self._encoder.encode(value)

    def decode(self, data: bytes) -> object:
        raise NotImplementedError("data is decoded with the schema that it names")


class _Decoding:
    def __init__(self, schema: ParsedSchema) -> None:
        self._schema = schema

    def encode(self, value: object) -> bytes:
        raise NotImplementedError("values are encoded with the latest schema of their subject")

    def decode(self, data: bytes) -> object:
        found = unframe(data)
        assert found is not None, "it was looked up by its name"
        return self._schema.decode(found.data)


def _http_credentials(credentials: Credentials | None) -> http.Credentials | None:
    match credentials:
        case None:
            return None
        case BearerToken(token=token):
            current = token if isinstance(token, str) else token()
            assert isinstance(current, str), "tokens of this client are not awaited"
            return http.Credentials(key=current)
        case _ if is_api_key(credentials.password):
            return http.Credentials(key=credentials.password)
        case _:
            return http.Credentials(user=credentials.user, password=credentials.password)
