"""`alpacactl cluster`: the brokers there are."""

import argparse

from .asking import add_verb, reach, verbs_of
from .output import Output, Table
from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    add_verb(verbs_of(parser), common, "describe", "show the brokers of the cluster", _describe)


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.brokers import describe_cluster

    with reach(parsed) as cluster:
        description = describe_cluster(cluster)
    brokers: list[dict[str, Plain]] = [
        {
            "id": broker.id,
            "address": str(broker.address),
            "rack": broker.rack,
            "controller": broker.id == description.controller,
        }
        for broker in description.brokers
    ]
    output.show(
        {"cluster": description.id, "controller": description.controller, "brokers": brokers},
        Table(["cluster"], [[description.id]]),
        Table(["broker", "address", "rack", "controller"], [list(broker.values()) for broker in brokers]),
    )
