"""`alpacamq format`: membership of a data directory by hand."""

from pathlib import Path

import pytest

from alpacamq.log.data_directory import read_identity
from alpacamq.log.disk import SystemDisk
from alpacamq.node.main import main


def cluster_of(path: Path) -> str:
    return read_identity(SystemDisk(), path / "identity").cluster_id


def test_a_directory_is_made_a_member_of_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    assert main(["format", "--data-dir", str(directory), "--node-id", "4", "--cluster-id", "theirs"]) == 0
    assert cluster_of(directory) == "theirs"
    assert "belongs to cluster theirs" in capsys.readouterr().out


def test_a_directory_of_a_cluster_is_neither_formatted_nor_reset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    main(["format", "--data-dir", str(directory), "--cluster-id", "first"])
    for arguments in (["--cluster-id", "second"], ["--reset"]):
        assert main(["format", "--data-dir", str(directory), *arguments]) == 1
        assert "belongs to cluster first" in capsys.readouterr().err
    assert cluster_of(directory) == "first"


def test_a_reset_gives_an_empty_directory_another_id(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    ids = set()
    for _ in range(2):
        assert main(["format", "--data-dir", str(directory), "--reset"]) == 0
        ids.add(read_identity(SystemDisk(), directory / "identity").directory_id)
    assert (len(ids), cluster_of(directory)) == (2, "")
