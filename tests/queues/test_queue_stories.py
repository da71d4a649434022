"""Transcripts of queues under transcripts/queue."""

from pathlib import Path

import pytest

from tests.transcripts import play

from .queue_stage import Stage

STORIES = sorted((Path(__file__).parent / "transcripts" / "queue").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem.replace("_", " "))
def test_transcript(story: Path, pytestconfig: pytest.Config) -> None:
    stage = Stage()
    play(story, stage.act, pytestconfig)
    stage.host.check_changes()
