"""Apache Kafka's own tools from jars in the benchmarks' cache; tests that need them are skipped without."""

import subprocess
from pathlib import Path

import pytest
from benchmarks.apache_kafka import VERSION
from benchmarks.jars import CACHE, Unavailable, java

JARS = CACHE / f"kafka-{VERSION}"
# Those of org.apache.kafka:kafka-tools, which the benchmarks do not need.
TOOL_JARS = CACHE / f"kafka-tools-{VERSION}"


def require_kafka() -> None:
    """Skip the test unless Java and Kafka's jars are here. Nothing is downloaded."""
    try:
        java()
    except Unavailable as reason:
        pytest.skip(str(reason))
    if not JARS.exists():
        pytest.skip(f"there are no jars of Kafka {VERSION}: the benchmarks resolve them")


def require_kafka_tools() -> None:
    """Skip the test unless the tools that Kafka has in jars of their own are here as well."""
    require_kafka()
    if not TOOL_JARS.exists():
        pytest.skip(f"there are no jars of org.apache.kafka:kafka-tools:{VERSION} in {TOOL_JARS}")


def dump_log_segments(*files: Path, options: tuple[str, ...] = ()) -> str:
    """Return what kafka.tools.DumpLogSegments prints about index or log files."""
    names = ",".join(str(file) for file in files)
    done = _run("kafka.tools.DumpLogSegments", *options, "--files", names)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def kafka_configs(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-configs.sh."""
    return _run("kafka.admin.ConfigCommand", "--bootstrap-server", address, *options)


def kafka_reassign_partitions(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-reassign-partitions.sh."""
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    return _run(tool, "--bootstrap-server", address, *options, jars=TOOL_JARS)


def kafka_leader_election(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-leader-election.sh."""
    tool = "org.apache.kafka.tools.LeaderElectionCommand"
    return _run(tool, "--bootstrap-server", address, *options, jars=TOOL_JARS)


def kafka_metadata_quorum(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-metadata-quorum.sh."""
    tool = "org.apache.kafka.tools.MetadataQuorumCommand"
    return _run(tool, "--bootstrap-server", address, *options, jars=TOOL_JARS)


def kafka_features(address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-features.sh."""
    tool = "org.apache.kafka.tools.FeatureCommand"
    return _run(tool, "--bootstrap-server", address, *options, jars=TOOL_JARS)


def kafka_cluster(address: str, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run kafka-cluster.sh."""
    return _run(
        "org.apache.kafka.tools.ClusterTool", verb, "--bootstrap-server", address, *options, jars=TOOL_JARS
    )


def _run(tool: str, *options: str, jars: Path = JARS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["java", "-cp", f"{jars}/*", tool, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
