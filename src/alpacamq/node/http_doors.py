"""The doors that speak HTTP: which of them are open, where they listen, and who answers there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from alpacamq.api.http.listener import HttpListener
from alpacamq.api.http.messages import App
from alpacamq.api.rest.door import RestDoor
from alpacamq.api.sqs.door import SqsDoor
from alpacamq.api.sqs.settings import SqsSettings
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address

from .config import NodeConfig
from .http_config import HttpDoorConfig, SqsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDoor:
    """One open door: its address is taken; who knocks waits until it runs."""

    name: str
    listener: HttpListener
    address: Address
    app_for: Callable[[Broker], App]

    async def run(self, broker: Broker) -> None:
        """Serve until cancelled."""
        await self.listener.run(self.app_for(broker))


def open_doors(config: NodeConfig) -> Iterator[HttpDoor]:
    """Take the address of every door that is not switched off."""
    if config.http.enabled:
        yield _open("http", config.http, RestDoor)
    if config.sqs.enabled:
        settings = sqs_settings(config.sqs)
        yield _open("sqs", config.sqs, lambda broker: SqsDoor(broker, settings))


def sqs_settings(config: SqsConfig) -> SqsSettings:
    """The SQS door's share of its section."""
    return SqsSettings(
        region=config.region,
        account_id=config.account_id,
        access_key_id=config.access_key_id,
        secret_access_key=config.secret_access_key,
    )


def _open(name: str, config: HttpDoorConfig, app_for: Callable[[Broker], App]) -> HttpDoor:
    listener = HttpListener(config.listen.host, config.listen.port, config, section=name)
    return HttpDoor(name=name, listener=listener, address=Address(*listener.bind()), app_for=app_for)
