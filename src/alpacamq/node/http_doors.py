"""The doors that speak HTTP: which of them are open, where they listen, and who answers there."""

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from alpacamq.api.console.door import ConsoleDoor
from alpacamq.api.http.hosts import HostCheck, Hosts
from alpacamq.api.http.listener import HttpListener
from alpacamq.api.http.messages import App
from alpacamq.api.rest.door import RestDoor
from alpacamq.api.sqs.door import SqsDoor
from alpacamq.api.sqs.settings import SqsSettings
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.telemetry.metrics import Metrics

from .config import NodeConfig
from .http_config import HttpDoorConfig, SqsConfig

# Has a listener's requests answered until cancelled, given the broker and where all of its doors are reached.
Serve = Callable[[HttpListener, Broker, Mapping[str, Address]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDoor:
    """One open door: its address is taken, and its listener runs from when the broker starts to recover."""

    name: str
    listener: HttpListener
    address: Address
    hosts: Hosts
    serve: Serve

    async def recover(self, starting: App) -> None:
        """Run the listener until cancelled; `starting` answers until there is a broker."""
        await self.listener.run(HostCheck(starting, self.hosts, hosts_setting(self.name)))

    async def run(self, broker: Broker, reached: Mapping[str, Address]) -> None:
        """Let clients in to the broker until cancelled; its listener runs."""
        await self.serve(self.listener, broker, reached)


def open_doors(config: NodeConfig, metrics: Metrics | None) -> Iterator[HttpDoor]:
    """Take the address of every door that is not switched off."""
    if config.http.enabled:
        http_hosts = hosts_of(config, config.http)

        async def serve_rest(listener: HttpListener, broker: Broker, reached: Mapping[str, Address]) -> None:
            rest = RestDoor(broker, reached)
            listener.switch_to(HostCheck(ConsoleDoor(rest), http_hosts, hosts_setting("http")))
            await rest.run()

        yield _open("http", config.http, http_hosts, serve_rest, metrics)
    if config.sqs.enabled:
        settings = sqs_settings(config.sqs)
        sqs_hosts = hosts_of(config, config.sqs)

        async def serve_sqs(listener: HttpListener, broker: Broker, _reached: Mapping[str, Address]) -> None:
            sqs = SqsDoor(broker, settings)
            listener.switch_to(HostCheck(sqs, sqs_hosts, hosts_setting("sqs"), sqs.refuse_host))

        yield _open("sqs", config.sqs, sqs_hosts, serve_sqs, metrics)


def hosts_of(config: NodeConfig, door: HttpDoorConfig) -> Hosts:
    """The names by which the clients of a door may address it."""
    names = {socket.gethostname(), door.listen.host, config.kafka.listen.host, *door.hosts}
    if config.kafka.advertised is not None:
        names.add(config.kafka.advertised.host)
    return Hosts(names)


def hosts_setting(name: str) -> str:
    """The option that adds names."""
    return f"{name}.hosts"


def sqs_settings(config: SqsConfig) -> SqsSettings:
    """The SQS door's share of its section."""
    return SqsSettings(
        region=config.region,
        account_id=config.account_id,
        access_key_id=config.access_key_id,
        secret_access_key=config.secret_access_key,
    )


def _open(name: str, config: HttpDoorConfig, hosts: Hosts, serve: Serve, metrics: Metrics | None) -> HttpDoor:
    figures = None if metrics is None else metrics.doors[name]
    listener = HttpListener(config.listen.host, config.listen.port, config, section=name, figures=figures)
    return HttpDoor(name=name, listener=listener, address=Address(*listener.bind()), hosts=hosts, serve=serve)
