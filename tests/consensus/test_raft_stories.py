"""Transcripts of Raft under transcripts/."""

from pathlib import Path

import pytest

from tests.consensus.raft_stage import Stage
from tests.transcripts import play

STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Stage().act, pytestconfig)
