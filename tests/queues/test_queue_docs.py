"""The page about queues draws the states that there are."""

import re
from pathlib import Path

from alpacamq.queues.chunks import NEXT_STATES

PAGE = Path(__file__).parent.parent.parent / "docs" / "internals" / "queues.md"


def test_the_diagram_has_exactly_the_steps_that_messages_can_take() -> None:
    drawn = {
        tuple(step) for step in re.findall(r"^ +(\w+) --> (\w+|\[\*\]):", PAGE.read_text(), re.MULTILINE)
    }
    steps = {
        (state.name, "[*]" if following is None else following.name)
        for state, all_following in NEXT_STATES.items()
        for following in all_following
    }
    assert drawn == steps
