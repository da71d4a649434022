"""Start-up and shutdown of a node: wires a broker and its APIs and runs them until a signal."""

import asyncio
import gc
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import msgspec

from alpacamq.api.console.app import ConsoleApp
from alpacamq.api.grpc.listener import GrpcListener
from alpacamq.api.http.hosts import HostCheck, Hosts
from alpacamq.api.http.messages import App
from alpacamq.api.http.server import HttpListener, remedy_of
from alpacamq.api.kafka.call import KAFKA_LISTENER, Backend
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.api.listening import ListenerSettings
from alpacamq.api.registry.app import MountedRegistry, RegistryApi
from alpacamq.api.rest.app import RecoveryApp, RestApi
from alpacamq.api.sqs.app import SqsApi
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.api.tls import (
    MAX_HANDSHAKES,
    NODE_HANDSHAKE_SHARE,
    NODE_HANDSHAKES,
    Handshakes,
    ListenerTls,
)
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.delay.service import DelaySettings
from alpacamq.broker.groups import CoordinatorSettings
from alpacamq.broker.member import CLUSTER_LISTENER
from alpacamq.broker.metadata.registration import RegistrationSettings
from alpacamq.broker.queue.host import QueueSettings
from alpacamq.broker.replication.service import ReplicationSettings
from alpacamq.broker.tls import Certificates, ClientCertificates
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.topics import TopicLimits
from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings
from alpacamq.coordinator.messages import GroupSettings
from alpacamq.coordinator.transactions.coordinator import TransactionSettings
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import BrokerId
from alpacamq.model.version import VERSION
from alpacamq.queues.messages import EngineLimits
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import Metrics, SeriesLimits

from .cluster import NodeListener, advertised_for, member_settings
from .config import KafkaConfig, NodeConfig
from .listeners import (
    ListenerApi,
    NamedListener,
    listener_settings,
    tls_settings,
    warn_of_plain_passwords,
)
from .sections import HttpApiConfig, HttpConfig, SqsConfig, tracing_settings
from .security import audit_settings, security_settings
from .signals import stop_on_signals, stop_with_parent
from .supervisor import Supervisor

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
        for listener in (config.http, config.sqs, config.registry, config.grpc)
        if listener.enabled
    )
    if config.tls.certificate is not None:
        reserved = min(reserved + MAX_HANDSHAKES + NODE_HANDSHAKES, limit // _LOW_SHARE)
    files = config.log.open_files or max(least_files, min(limit - reserved - wanted, MAX_SEGMENT_FILES))
    room = max(0, limit - reserved - files)
    if wanted > room:
        config = _with_fewer_connections(config, room / wanted)
        print(
            f"warning: the limit of {limit} open files is too low for max_connections of kafka, http, "
            f"sqs, registry and grpc; "
            f"reduced to {config.kafka.max_connections}, {config.http.max_connections}, "
            f"{config.sqs.max_connections}, {config.registry.max_connections} and "
            f"{config.grpc.max_connections} connections. "
            "Raise the limit (ulimit -n) or lower max_connections",
            file=sys.stderr,
        )
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, open_files=files))


def _with_fewer_connections(config: NodeConfig, share: float) -> NodeConfig:
    def fewer(connections: int) -> int:
        return min(connections, max(MIN_CONNECTIONS, int(connections * share)))

    replace = msgspec.structs.replace
    kafka, http, sqs, registry, grpc = config.kafka, config.http, config.sqs, config.registry, config.grpc
    return replace(
        config,
        kafka=replace(kafka, max_connections=fewer(kafka.max_connections)),
        http=replace(http, max_connections=fewer(http.max_connections)),
        sqs=replace(sqs, max_connections=fewer(sqs.max_connections)),
        registry=replace(registry, max_connections=fewer(registry.max_connections)),
        grpc=replace(grpc, max_connections=fewer(grpc.max_connections)),
    )


# Serves the requests of a listener until cancelled, given the broker and the addresses of all its APIs.
# The HTTP API is made for the first listener that needs it: there and over gRPC it is the same.
Serve = Callable[[HttpListener, Broker, Callable[[], RestApi]], Awaitable[None]]


class BoundApi(msgspec.Struct, frozen=True, kw_only=True):
    """An enabled API with a bound address; its listener runs from the start of recovery on."""

    name: str
    listener: HttpListener
    # Of the first listener; of all, by name, as clients reach them; and whether the first has TLS.
    address: Address
    reached: Mapping[str, Address]
    has_tls: bool
    hosts: Hosts
    serve: Serve

    async def recover(self, starting: App) -> None:
        """Run the listener until cancelled; `starting` answers requests during recovery."""
        await self.listener.run(HostCheck(starting, self.hosts, hosts_setting(self.name)))

    async def run(self, broker: Broker, rest: Callable[[], RestApi]) -> None:
        """Serve the broker on the running listener until cancelled."""
        await self.serve(self.listener, broker, rest)


def open_apis(
    config: NodeConfig, metrics: Metrics | None, make: Callable[[NamedListener, str], ListenerSettings]
) -> Iterator[BoundApi]:
    """Bind the addresses of every enabled API; `make` returns the settings of a listener."""

    def open_api(api: ListenerApi, section: HttpApiConfig, hosts: Hosts, serve: Serve) -> BoundApi:
        named = config.listeners_of(api)
        settings = [make(each, remedy_of(api) if each.section == api else "") for each in named]
        stats = None if metrics is None else metrics.listeners[api]
        listener = HttpListener.of(settings, section, api, stats)
        return BoundApi(
            name=api,
            listener=listener,
            address=Address(*listener.bind()),
            reached=reached_at(named, listener.addresses),
            has_tls=named[0].config.tls,
            hosts=hosts,
            serve=serve,
        )

    if config.http.enabled:
        http_hosts = hosts_of(config, config.http)

        async def serve_rest(listener: HttpListener, broker: Broker, rest: Callable[[], RestApi]) -> None:
            mounted = MountedRegistry(rest(), RegistryApi(broker))
            app = HostCheck(ConsoleApp(mounted), http_hosts, hosts_setting("http"))
            listener.switch_to(app, broker.quotas)

        yield open_api(ListenerApi.HTTP, config.http, http_hosts, serve_rest)
    if config.sqs.enabled:
        settings = sqs_settings(config.sqs)
        sqs_hosts = hosts_of(config, config.sqs)

        async def serve_sqs(listener: HttpListener, broker: Broker, _rest: Callable[[], RestApi]) -> None:
            sqs = SqsApi(broker, settings)
            app = HostCheck(sqs, sqs_hosts, hosts_setting("sqs"), sqs.refuse_host)
            listener.switch_to(app, broker.quotas)

        yield open_api(ListenerApi.SQS, config.sqs, sqs_hosts, serve_sqs)
    if config.registry.enabled:
        registry_hosts = hosts_of(config, config.registry)

        async def serve_registry(
            listener: HttpListener, broker: Broker, _rest: Callable[[], RestApi]
        ) -> None:
            registry = RegistryApi(broker)
            app = HostCheck(registry, registry_hosts, hosts_setting("registry"), registry.refuse_host)
            listener.switch_to(app, broker.quotas, registry.refuse)

        yield open_api(ListenerApi.REGISTRY, config.registry, registry_hosts, serve_registry)


class BoundGrpc(msgspec.Struct, frozen=True, kw_only=True):
    """The gRPC API with a bound address. Its clients wait until the broker has recovered."""

    listener: GrpcListener
    address: Address
    reached: Mapping[str, Address]


def open_grpc(
    config: NodeConfig, metrics: Metrics | None, make: Callable[[NamedListener, str], ListenerSettings]
) -> BoundGrpc | None:
    """Bind the addresses of the gRPC API; None if it is disabled."""
    if not (named := config.listeners_of(ListenerApi.GRPC)):
        return None
    settings = [make(each, remedy_of(each.section) if each.section == each.name else "") for each in named]
    stats = None if metrics is None else metrics.listeners["grpc"]
    listener = GrpcListener(settings, config.grpc, stats)
    address = listener.bind()
    return BoundGrpc(listener=listener, address=address, reached=reached_at(named, listener.addresses))


def reached_at(listeners: Iterable[NamedListener], bound: Mapping[str, Address]) -> Mapping[str, Address]:
    """Return the addresses at which clients reach listeners, by name."""
    host_name = socket.gethostname()
    return {each.name: each.config.advertised_for(bound[each.name], host_name) for each in listeners}


def hosts_of(config: NodeConfig, api: HttpApiConfig) -> Hosts:
    """Return the host names accepted by an API."""
    names = {socket.gethostname(), api.listen.host, config.kafka.listen.host, *api.hosts}
    if config.kafka.advertised is not None:
        names.add(config.kafka.advertised.host)
    for listener in config.listeners.values():
        names.update(each.host for each in (listener.listen, listener.advertised) if each is not None)
    return Hosts(names)


def hosts_setting(name: str) -> str:
    """Return the option that adds host names."""
    return f"{name}.hosts"


def sqs_settings(config: SqsConfig) -> SqsSettings:
    """Build the settings of the SQS API from its section."""
    return SqsSettings(
        region=config.region,
        account_id=config.account_id,
        access_key_id=config.access_key_id,
        secret_access_key=config.secret_access_key,
    )


# Time to wait for all partitions before Kafka clients are accepted for those that are ready.
RECOVERY_GRACE_SECONDS = 1.0

# How long a thread that runs Python may keep the event loop waiting each time. The default of 5 ms is
# added to a request at every system call while compaction, loading or recovery runs.
SWITCH_SECONDS = 0.0005
# Objects that survive a collection longer than this are exempt from later ones.
MAX_COLLECTION_SECONDS = 0.005
# Requests leave no reference cycles, and most are done before so many objects have been created.
YOUNG_OBJECTS = 10_000
COLLECTIONS_OF_YOUNG = 5
# Frequent full collections have little to scan; the default is 10.
FULL_COLLECTION_EVERY = 3

_TRY = (
    "echo hello | {over_kafka} produce greetings",
    "{over_kafka} consume greetings --exit",
    "{over_kafka} topics list",
)
_TRY_QUEUE = "{over_http} queue receive greetings --ack --exit"


async def serve(
    config: NodeConfig, started_at: float, supervisor: Supervisor | None = None, *, is_child: bool = False
) -> None:
    """Run a node until a signal; `supervisor` learns when it is ready and when it stops.

    A child stops when its standard input ends, too.
    """
    supervisor = supervisor or Supervisor()
    sys.setswitchinterval(SWITCH_SECONDS)
    keep_collections_short()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop_on_signals(stop, is_supervised=supervisor.is_present or is_child)
    if is_child:
        stop_with_parent(stop)
    config = fit_to_limit(config, raise_limit())
    metrics = _metrics(config)
    certificates = certificates_of(config, loop)
    handshakes = Handshakes()
    node_handshakes = Handshakes(NODE_HANDSHAKES, NODE_HANDSHAKE_SHARE)

    def make(listener: NamedListener, remedy: str) -> ListenerSettings:
        return listener_settings(listener, certificates, handshakes, remedy)

    # Bind first: an address in use should be reported before recovery.
    named = config.listeners_of(ListenerApi.KAFKA)
    remedies = {KAFKA_LISTENER: "change kafka.listen (--kafka HOST:PORT)"}
    listener = Listener.of(
        [make(each, remedies.get(each.name, "")) for each in named],
        config.kafka,
        None if metrics is None else metrics.listeners["kafka"],
    )
    bound = Address(*listener.bind())
    http_apis = list(open_apis(config, metrics, make))
    for_kafka = dict(reached_at(named, listener.addresses))
    grpc = open_grpc(config, metrics, make)
    reached = {**for_kafka, **{name: address for api in http_apis for name, address in api.reached.items()}}
    if grpc is not None:
        reached |= grpc.reached
    advertised = for_kafka.pop(KAFKA_LISTENER)
    broker = Broker(broker_settings(config, reached), metrics=metrics, certificates=certificates)
    warn_of_plain_passwords(config.security, config.all_listeners())
    failure: AlpacaError | None = None
    is_open = False

    async def run_broker() -> None:
        """Run the broker; stop the node when it cannot go on."""
        nonlocal failure
        try:
            await broker.run()
        except* AlpacaError as errors:
            failure = next(_leaves(errors))
            log.error("node_failed", reason=str(failure))
            stop.set()

    def start_step() -> str:
        step = broker.start_step()
        return f"{step.doing}: {step.detail}"

    try:
        async with asyncio.TaskGroup() as tasks:
            # HTTP clients get the progress of recovery; Kafka connections wait in the backlog.
            starting = RecoveryApp(broker.start_step)
            running = [tasks.create_task(api.recover(starting)) for api in http_apis]
            running.append(tasks.create_task(supervisor.run(start_step)))
            if certificates is not None:
                running.append(tasks.create_task(certificates.run()))
            try:
                if config.cluster.is_enabled:
                    await loop.run_in_executor(None, broker.open_directory)
                    assert broker.member is not None
                    nodes = NodeListener(
                        config.cluster, broker.member, _cluster_tls(config, certificates, node_handshakes)
                    )
                    nodes.bind()
                    running.append(tasks.create_task(nodes.run()))
                    running.append(tasks.create_task(broker.member.run()))
                    if not await _unless_stopped(broker.join(), stop):
                        raise _Stopped
                    nodes.serve_fetches(broker)
                else:
                    await loop.run_in_executor(None, broker.begin)
                is_open = True
                requests = KafkaRequests(
                    Backend(broker=broker, host=advertised.host, port=advertised.port, others=for_kafka)
                )
                running.append(tasks.create_task(run_broker()))
                waits_for_all = broker.is_power_loss_open
                recovering = asyncio.ensure_future(_recover(broker, stop))
                if not waits_for_all:
                    # Kafka clients may use partitions that are ready during recovery. Most starts
                    # are shorter, and clients accepted after recovery do not notice it.
                    await asyncio.wait({recovering}, timeout=RECOVERY_GRACE_SECONDS)
                    running.append(tasks.create_task(listener.run(requests, broker.quotas)))
                is_recovered = await recovering
                if is_recovered and waits_for_all:
                    is_recovered = await _settle(broker, stop)
                    running.append(tasks.create_task(listener.run(requests, broker.quotas)))
            except _Stopped:
                is_recovered = False
            except AlpacaError as error:
                failure = error
                is_recovered = False
            if is_recovered and config.cluster.is_enabled:
                is_recovered = await _unless_stopped(broker.registration.wait_until_unfenced(), stop)
            if is_recovered:
                rest = cache(partial(RestApi, broker, reached))
                running += [tasks.create_task(api.run(broker, rest)) for api in http_apis]
                if grpc is not None:
                    running.append(tasks.create_task(grpc.listener.run(broker, reached, rest)))
                # Listeners accept clients in their first step; announce readiness only after that.
                await asyncio.sleep(0)
                await listener.listening.wait()
                for api in http_apis:
                    await api.listener.listening.wait()
                if grpc is not None:
                    await grpc.listener.listening.wait()
                # Loaded state is permanent; a full collection of it takes 50 ms.
                gc.freeze()
                announce(config, bound, http_apis, grpc, started_at)
                supervisor.ready()
                await stop.wait()
                supervisor.stopping()
                log.info("stopping")
                if grpc is not None:
                    # While the broker can still take back the leases of streams.
                    await grpc.listener.drain()
                await broker.leave()
            for task in running:
                task.cancel()
            handshakes.abort()
            node_handshakes.abort()
    finally:
        if is_open:
            await broker.close()
    if failure is not None:
        raise failure
    log.info("stopped")


def certificates_of(config: NodeConfig, loop: asyncio.AbstractEventLoop) -> Certificates | None:
    """Load the certificates, and load them again on SIGHUP; None if there are none."""
    if (settings := tls_settings(config.tls)) is None:
        return None
    certificates = Certificates(settings, SystemClock())
    loop.add_signal_handler(signal.SIGHUP, certificates.reload_soon)
    return certificates


def _cluster_tls(
    config: NodeConfig, certificates: Certificates | None, handshakes: Handshakes
) -> ListenerTls | None:
    """Return how other nodes connect; None for plain connections."""
    if not config.cluster.tls:
        return None
    assert certificates is not None, "checked with the configuration"
    return ListenerTls(
        certificates=certificates,
        handshakes=handshakes,
        client_certificates=ClientCertificates.REQUIRED,
        names_principals=False,
        is_optional=config.cluster.tls_optional,
    )


def _leaves(errors: BaseExceptionGroup[AlpacaError]) -> Iterator[AlpacaError]:
    """Yield the errors of a group of groups."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class _Stopped(Exception):
    """The node was stopped before it had joined its cluster."""


async def _unless_stopped(work: Awaitable[None], stop: asyncio.Event) -> bool:
    """Return whether the work ended before the node was stopped."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        await working
        return True
    finally:
        working.cancel()
        stopping.cancel()


async def _recover(broker: Broker, stop: asyncio.Event) -> bool:
    """Recover all partitions; return False if the node was stopped first."""
    recovering = asyncio.ensure_future(broker.recover())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({recovering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            broker.topics.stop_loading()
        await recovering
    finally:
        stopping.cancel()
    return not stop.is_set()


def keep_collections_short() -> None:
    """Make garbage collections scan only objects created since the last long one.

    Scanning a million keys of state would block everything for a second whenever they grow by a quarter, and
    the blocks of messages that a minute has read for a tenth.
    Objects alive after a long collection are exempt from later ones. They are still freed by reference
    counting, except in reference cycles, of which there are few.
    """
    began_at = 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began_at
        if phase == "start":
            began_at = time.monotonic()
        elif info["generation"] and time.monotonic() - began_at > MAX_COLLECTION_SECONDS:
            gc.freeze()

    gc.callbacks.append(collected)
    gc.set_threshold(YOUNG_OBJECTS, COLLECTIONS_OF_YOUNG, FULL_COLLECTION_EVERY)


async def _settle(broker: Broker, stop: asyncio.Event) -> bool:
    """Wait until a power loss has been dealt with; return False if the node was stopped first."""
    settling = asyncio.ensure_future(broker.wait_until_settled())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({settling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for future in (settling, stopping):
        future.cancel()
    return not stop.is_set()


def announce(
    config: NodeConfig,
    kafka: Address,
    http_apis: Sequence[BoundApi],
    grpc: BoundGrpc | None,
    started_at: float,
) -> None:
    """Print the addresses, the data directory and commands to try."""
    data = config.node.data_dir.absolute()
    print(f"AlpacaMQ {VERSION} is ready after {time.monotonic() - started_at:.2f} s\n")
    addresses = {"kafka": str(kafka), **{api.name: str(api.address) for api in http_apis}}
    if grpc is not None:
        addresses["grpc"] = str(grpc.address)
    shown = dict(addresses)
    for api in http_apis:
        if api.name == "http":
            scheme = "https" if api.has_tls else "http"
            shown["console"] = f"{scheme}://{_reachable(api.address)}/console/"
    for name, address in {**shown, "data": str(data)}.items():
        print(f"  {name:<8} {address}")
    print("\nTry:")
    for line in _to_try(config, kafka, http_apis):
        print(f"  {line}")
    print(f"or any Kafka client on {kafka}.\n")
    print("Ctrl-C stops it.", flush=True)
    log.info("ready", **addresses, data_dir=str(data))


def _to_try(config: NodeConfig, kafka: Address, http_apis: Sequence[BoundApi]) -> Iterator[str]:
    """Yield commands with the path of alpacactl if it is installed beside the broker."""
    beside = Path(sys.argv[0]).with_name("alpacactl")
    command = str(beside) if beside.is_file() else "alpacactl"
    if config.security.authentication:
        command += " --user NAME"
    over_kafka = command if kafka == KafkaConfig().listen else f"{command} --broker {kafka}"
    if config.kafka.tls:
        over_kafka += " --ca FILE"
    yield from (line.format(over_kafka=over_kafka) for line in _TRY)
    for api in http_apis:
        if api.name == "http":
            is_usual = api.address == HttpConfig().listen
            over_http = command if is_usual else f"{command} --http {api.address}"
            if api.has_tls:
                over_http += " --ca FILE"
            yield _TRY_QUEUE.format(over_http=over_http)


def _reachable(bound: Address) -> Address:
    """Return the address at which other machines reach a bound listener."""
    return Address(socket.gethostname(), bound.port) if bound.is_wildcard else bound


def broker_settings(config: NodeConfig, reached: Mapping[str, Address]) -> BrokerSettings:
    """Build the broker's settings from the configuration and the addresses at which it is reached."""
    cluster = config.cluster
    endpoints = dict(reached)
    if cluster.is_enabled:
        endpoints[CLUSTER_LISTENER] = advertised_for(cluster, cluster.listen)
    return BrokerSettings(
        node_id=BrokerId(config.node.id),
        data_directory=config.node.data_dir,
        auto_create_topics=config.topics.auto_create,
        limits=TopicLimits(
            default_partitions=config.topics.default_partitions, max_partitions=config.topics.max_partitions
        ),
        topic_defaults=config.topics.defaults,
        open_files=config.log.open_files,
        index_cache_bytes=config.log.index_cache_bytes,
        checkpoint_bytes=config.log.checkpoint_bytes,
        retention_check_ms=config.log.retention_check_ms,
        clock_hold_ms=config.log.clock_hold_ms,
        unpacked_limit_bytes=config.log.unpacked_limit_bytes,
        coordination=_coordination(config),
        transactions=TransactionSettings(
            max_timeout_ms=config.transactions.max_timeout_ms,
            id_expiration_ms=config.transactions.id_expiration_ms,
        ),
        queues=_queues(config),
        delays=DelaySettings(max_pending=config.delays.max_pending, max_delay_ms=config.delays.max_delay_ms),
        tracing=tracing_settings(config.tracing, config.node.id),
        registration=RegistrationSettings(
            endpoints=endpoints,
            rack=cluster.rack or socket.gethostname(),
            roles=tuple(role.value for role in cluster.roles),
            heartbeat_ms=cluster.heartbeat_ms,
            dead_ms=cluster.dead_ms,
        ),
        controller=ControllerSettings(dead_ms=cluster.dead_ms, replication_factor=cluster.replication_factor),
        replication=ReplicationSettings(replica_lag_ms=cluster.replica_lag_ms, flush=cluster.flush),
        security=security_settings(config.security),
        audit=audit_settings(config.audit),
        member=member_settings(cluster),
    )


def _metrics(config: NodeConfig) -> Metrics | None:
    """Create the metrics; None if they are disabled."""
    metrics = config.metrics
    if not metrics.enabled:
        return None
    return Metrics(SeriesLimits(max_topics=metrics.max_topics, max_groups=metrics.max_groups))


def _queues(config: NodeConfig) -> QueueSettings:
    queues = config.queues
    return QueueSettings(
        limits=EngineLimits(
            max_queues=queues.max_queues,
            max_waiting_receives=queues.max_waiting_receives,
            max_indexed_runs=queues.max_indexed_runs,
            max_blocked_messages=queues.max_blocked_messages,
        ),
        cache_bytes=queues.cache_bytes,
    )


def _coordination(config: NodeConfig) -> CoordinatorSettings:
    groups = config.groups
    return CoordinatorSettings(
        groups=GroupSettings(
            initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
            max_members=groups.max_members,
            offsets_retention_ms=groups.offsets_retention_ms,
        ),
        consumer_groups=ConsumerGroupSettings(
            session_timeout_ms=groups.session_timeout_ms,
            heartbeat_interval_ms=groups.heartbeat_interval_ms,
            max_members=groups.max_members,
        ),
    )
