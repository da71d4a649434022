"""What a broker says of itself and its APIs."""

import httpx

from alpacamq.model.version import VERSION
from tests.brokers import Broker
from tests.conftest import NewBroker


def test_the_addresses_of_all_apis_are_returned(http: httpx.Client, broker: Broker) -> None:
    told = http.get("/cluster").json()
    assert told["doors"] == {
        "kafka": broker.address,
        "http": broker.http_address,
        "sqs": broker.sqs_address,
        "registry": broker.registry_address,
        "grpc": broker.grpc_address,
    }
    assert told["version"] == VERSION
    assert told["cluster_id"] == http.get("/version").json()["cluster_id"]


def test_clients_get_the_advertised_address(new_broker: NewBroker) -> None:
    disabled = "".join(f"[{api}]\nenabled = false\n" for api in ("sqs", "registry", "grpc"))
    config = f'[kafka]\nadvertised = "broker.example:19092"\n{disabled}'
    broker = new_broker(config=config).start()
    told = httpx.get(f"http://{broker.http_address}/cluster").json()
    assert told["doors"] == {"kafka": "broker.example:19092", "http": broker.http_address}
