"""Divides the file descriptors of the process between the log and the listeners.

The log comes first: without a descriptor it can neither write nor flush. The listeners share the rest
in proportion to their max_connections, and none accepts more than its share.
"""

import resource
import sys

import msgspec

from alpacamq.telemetry.logs import get_logger

from .config import NodeConfig

log = get_logger(__name__)

# Reserved for short-lived descriptors: files that threads write, flush and compact, directories
# being synced, connections being refused.
RESERVED = 256
MAX_SEGMENT_FILES = 1024
MIN_SEGMENT_FILES = 64
# If the limit is too low even for these, each gets this fraction of it.
_LOW_SHARE = 4
# A Kafka client's connection takes two: its socket and the duplicate that sendfile uses.
KAFKA_CONNECTION = 2
HTTP_CONNECTION = 1
MIN_CONNECTIONS = 4
# Used if the hard limit is infinite.
_UNLIMITED = 65536


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("file_limit_not_raised", limit=soft, reason=str(error))
        return soft
    return wanted


def fit_to_limit(config: NodeConfig, limit: int) -> NodeConfig:
    """Reduce segment files and connections in the configuration to what `limit` descriptors allow."""
    reserved = min(RESERVED, limit // _LOW_SHARE)
    least_files = min(MIN_SEGMENT_FILES, limit // _LOW_SHARE)
    wanted = KAFKA_CONNECTION * config.kafka.max_connections
    wanted += sum(
        HTTP_CONNECTION * listener.max_connections
        for listener in (config.http, config.sqs)
        if listener.enabled
    )
    files = config.log.open_files or max(least_files, min(limit - reserved - wanted, MAX_SEGMENT_FILES))
    room = max(0, limit - reserved - files)
    if wanted > room:
        config = _with_fewer_connections(config, room / wanted)
        print(
            f"warning: the limit of {limit} open files is too low for max_connections of kafka, http "
            f"and sqs; "
            f"reduced to {config.kafka.max_connections}, "
            f"{config.http.max_connections} and {config.sqs.max_connections} connections. "
            "Raise the limit (ulimit -n) or lower max_connections",
            file=sys.stderr,
        )
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, open_files=files))


def _with_fewer_connections(config: NodeConfig, share: float) -> NodeConfig:
    def fewer(connections: int) -> int:
        return min(connections, max(MIN_CONNECTIONS, int(connections * share)))

    replace = msgspec.structs.replace
    kafka, http, sqs = config.kafka, config.http, config.sqs
    return replace(
        config,
        kafka=replace(kafka, max_connections=fewer(kafka.max_connections)),
        http=replace(http, max_connections=fewer(http.max_connections)),
        sqs=replace(sqs, max_connections=fewer(sqs.max_connections)),
    )
