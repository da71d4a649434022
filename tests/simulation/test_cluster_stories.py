"""Transcripts of replication and failover under transcripts/."""

from pathlib import Path

import pytest

from tests.simulation.story_stage import Stage
from tests.transcripts import play

STORIES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem.replace("_", " "))
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    play(story, Stage().act, pytestconfig)
