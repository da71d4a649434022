"""Division of descriptors between the log and the listeners."""

import pytest

from alpacamq.node.config import NodeConfig, load
from alpacamq.node.serve import KAFKA_CONNECTION, MAX_SEGMENT_FILES, MIN_SEGMENT_FILES, fit_to_limit


def connections(config: NodeConfig) -> tuple[int, ...]:
    apis = (config.kafka, config.http, config.sqs, config.registry)
    return tuple(api.max_connections for api in apis)


def test_a_high_limit_changes_nothing_but_the_segment_files(capsys: pytest.CaptureFixture[str]) -> None:
    config = fit_to_limit(NodeConfig(), 65536)
    assert connections(config) == (2000, 2000, 2000, 2000)
    assert config.log.open_files == MAX_SEGMENT_FILES
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("limit", [128, 256, 1024, 4096, 8192])
def test_a_low_limit_leaves_the_log_its_share(limit: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = fit_to_limit(NodeConfig(), limit)
    kafka, http, sqs, registry = connections(config)
    assert kafka == http == sqs == registry
    assert config.log.open_files >= min(MIN_SEGMENT_FILES, limit // 4)
    assert KAFKA_CONNECTION * kafka + http + sqs + registry + config.log.open_files <= limit - min(
        256, limit // 4
    )
    assert f"the limit of {limit} open files is too low" in capsys.readouterr().err


def test_configured_limits_are_respected(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = {"kafka.max_connections": "100", "log.open_files": "500", "sqs.enabled": "false"}
    overrides |= {"registry.enabled": "false", "grpc.enabled": "false"}
    config = fit_to_limit(load(None, {}, {**overrides, "http.max_connections": "50"}), 1024)
    assert connections(config)[:2] == (100, 50)
    assert config.log.open_files == 500
    assert capsys.readouterr().err == ""
