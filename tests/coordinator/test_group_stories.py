"""Transcripts of groups and offsets under transcripts/groups."""

from pathlib import Path

import pytest

from tests.transcripts import play

from .group_stage import Stage

STORIES = sorted((Path(__file__).parent / "transcripts" / "groups").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem.replace("_", " "))
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    stage = Stage()
    play(story, stage.act, pytestconfig)
    stage.host.check_log()
