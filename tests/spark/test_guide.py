"""The examples of the Spark page work, in one session and in order."""

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker

from .topics import make_topic

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "spark.md"
BLOCK = re.compile(r"^```py\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def test_examples_of_the_page_work(spark: SparkSession, broker: Broker, cluster: Cluster) -> None:
    assert spark is SparkSession.getActiveSession()  # the page's own session is the one there is
    for topic in ("orders", "copies", "sales", "teas"):
        make_topic(cluster, topic)
    names: dict[str, object] = {}
    # What needs a cluster is run in test_worker_package.
    head, _, rest = PAGE.read_text().partition("## Clusters without AlpacaMQ")
    examples = BLOCK.findall(head + rest[rest.index("\n## ") :])
    assert len(examples) == 8
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            own = code.replace("localhost:9092", broker.address).replace(
                "localhost:8080", broker.http_address
            )
            exec(own, names)  # noqa: S102 - our own page
        assert printed.getvalue() == expected, code
