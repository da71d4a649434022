"""The example notebook works, and shows what it prints.

Its cells are plain Python and run as such: Jupyter's kernel would be twenty more packages to develop with.
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker

from .topics import make_topic

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "spark.ipynb"


def test_cells_print_what_the_notebook_shows(spark: SparkSession, broker: Broker, cluster: Cluster) -> None:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert spark is SparkSession.getActiveSession()  # the notebook's own session is the one there is
    for topic in ("notebook-sales", "notebook-loud"):
        make_topic(cluster, topic)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 5
    names: dict[str, object] = {}
    for cell in cells:
        code = "".join(cell["source"]).replace("localhost:9092", broker.address)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - our own notebook
        shown = "".join(text for output in cell["outputs"] for text in output["text"])
        assert printed.getvalue() == shown, code
