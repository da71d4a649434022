"""What a start costs: the modules that a broker with default settings does without."""

from tests.conftest import NewBroker

# Modules that take long to import and that only some settings or requests need.
FOR_SOME = {
    "alpacamq.cli",
    "alpacamq.client",
    "alpacamq.registry.avro",
    "alpacamq.registry.json_schema",
    "cryptography",
    "fastavro",
    "http.client",
    "importlib.resources",
    "jsonschema_rs",
    "jwt",
    "multiprocessing",
    "numpy",
    "re2",
    "tomllib",
    "unittest",
    "urllib.request",
    "xml",
}


def test_a_broker_with_default_settings_imports_nothing_that_only_some_need(new_broker: NewBroker) -> None:
    """Imports are most of a start; which modules they are is the same on a busy machine."""
    broker = new_broker(environment={"PYTHONPROFILEIMPORTTIME": "1"}).start()
    broker.stop()
    imported = {line.rpartition("|")[2].strip() for line in broker.errors.lines if "import time:" in line}
    assert "alpacamq.node.serve" in imported
    assert not imported & FOR_SOME
