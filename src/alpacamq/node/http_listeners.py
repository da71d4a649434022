"""Listeners of the enabled HTTP and SQS APIs, and the apps that serve them."""

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from alpacamq.api.console.app import ConsoleApp
from alpacamq.api.http.hosts import HostCheck, Hosts
from alpacamq.api.http.messages import App
from alpacamq.api.http.server import HttpListener
from alpacamq.api.rest.app import RestApi
from alpacamq.api.sqs.app import SqsApi
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.telemetry.metrics import Metrics

from .config import NodeConfig
from .sections import HttpApiConfig, SqsConfig

# Serves the requests of a listener until cancelled, given the broker and the addresses of all its APIs.
Serve = Callable[[HttpListener, Broker, Mapping[str, Address]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundApi:
    """An enabled API with a bound address; its listener runs from the start of recovery on."""

    name: str
    listener: HttpListener
    address: Address
    hosts: Hosts
    serve: Serve

    async def recover(self, starting: App) -> None:
        """Run the listener until cancelled; `starting` answers requests during recovery."""
        await self.listener.run(HostCheck(starting, self.hosts, hosts_setting(self.name)))

    async def run(self, broker: Broker, reached: Mapping[str, Address]) -> None:
        """Serve the broker on the running listener until cancelled."""
        await self.serve(self.listener, broker, reached)


def open_apis(config: NodeConfig, metrics: Metrics | None) -> Iterator[BoundApi]:
    """Bind the address of every enabled API."""
    if config.http.enabled:
        http_hosts = hosts_of(config, config.http)

        async def serve_rest(listener: HttpListener, broker: Broker, reached: Mapping[str, Address]) -> None:
            rest = RestApi(broker, reached)
            listener.switch_to(HostCheck(ConsoleApp(rest), http_hosts, hosts_setting("http")))

        yield _open("http", config.http, http_hosts, serve_rest, metrics)
    if config.sqs.enabled:
        settings = sqs_settings(config.sqs)
        sqs_hosts = hosts_of(config, config.sqs)

        async def serve_sqs(listener: HttpListener, broker: Broker, _reached: Mapping[str, Address]) -> None:
            sqs = SqsApi(broker, settings)
            listener.switch_to(HostCheck(sqs, sqs_hosts, hosts_setting("sqs"), sqs.refuse_host))

        yield _open("sqs", config.sqs, sqs_hosts, serve_sqs, metrics)


def hosts_of(config: NodeConfig, api: HttpApiConfig) -> Hosts:
    """Return the host names accepted by an API."""
    names = {socket.gethostname(), api.listen.host, config.kafka.listen.host, *api.hosts}
    if config.kafka.advertised is not None:
        names.add(config.kafka.advertised.host)
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


def _open(name: str, config: HttpApiConfig, hosts: Hosts, serve: Serve, metrics: Metrics | None) -> BoundApi:
    stats = None if metrics is None else metrics.listeners[name]
    listener = HttpListener(config.listen.host, config.listen.port, config, section=name, stats=stats)
    return BoundApi(name=name, listener=listener, address=Address(*listener.bind()), hosts=hosts, serve=serve)
