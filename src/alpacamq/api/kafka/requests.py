"""From a frame to the handler that understands it, and from its answer back to a frame."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import RequestHeader, read_request_header, response_frame
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode

from .connection import Answer, Connection
from .door import Door
from .fetch import FetchRequests
from .handlers import cluster, configs, metadata, offsets, topics
from .produce import ProduceRequests

# Only Produce carries data; decoding anything else takes many times its size in memory.
MAX_PLAIN_REQUEST_BYTES = 8 << 20

# A handler answers at once, or returns a coroutine that holds up the connection's next requests.
Handler = Callable[[Door, Any], Message | Coroutine[Any, Any, Message]]
HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.API_VERSIONS: cluster.api_versions,
    ApiKey.METADATA: metadata.metadata,
    ApiKey.FIND_COORDINATOR: cluster.find_coordinator,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_RECORDS: offsets.delete_records,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.ALTER_CONFIGS: configs.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    ApiKey.INIT_PRODUCER_ID: cluster.init_producer_id,
}


class KafkaRequests:
    """Serves every request of the Kafka door."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._produce = ProduceRequests(door.broker)
        self._fetch = FetchRequests(door.broker)
        self.end_turn = door.broker.commit

    def handle(self, connection: Connection, frame: memoryview) -> None:
        """Start on one request."""
        header = read_request_header(frame)
        api = APIS.get(header.api_key)
        if api is None:
            raise ProtocolError(f"there is no API with key {header.api_key}")
        if len(frame) > MAX_PLAIN_REQUEST_BYTES and api.key is not ApiKey.PRODUCE:
            raise ProtocolError(f"a {api.name} request of {len(frame)} bytes is too large")
        if not api.serves(header.api_version):
            self._refuse_version(connection, api, header)
        elif api.key is ApiKey.PRODUCE:
            self._produce.handle(connection, header, frame)
        elif api.key is ApiKey.FETCH:
            self._fetch.handle(connection, header, frame)
        else:
            request = decode(api.request, header.api_version, frame, header.body_at)
            response = HANDLERS[api.key](self._door, request)
            if isinstance(response, Message):
                connection.reserve().fill((_frame(api, header, response),))
            else:
                connection.hold()
                connection.spawn(_finish(connection, connection.reserve(), api, header, response))

    def _refuse_version(self, connection: Connection, api: Api, header: RequestHeader) -> None:
        if api.key is not ApiKey.API_VERSIONS:
            raise ProtocolError(
                f"{api.name} version {header.api_version} is not served, "
                f"only {api.min_version} to {api.max_version}"
            )
        body = encode(cluster.unsupported_api_versions(), 0)
        connection.reserve().fill((response_frame(api, 0, header.correlation_id, body),))


def _frame(api: Api, header: RequestHeader, response: Message) -> bytes:
    return response_frame(
        api, header.api_version, header.correlation_id, encode(response, header.api_version)
    )


async def _finish(
    connection: Connection,
    answer: Answer,
    api: Api,
    header: RequestHeader,
    response: Coroutine[Any, Any, Message],
) -> None:
    answer.fill((_frame(api, header, await response),))
    connection.proceed()
