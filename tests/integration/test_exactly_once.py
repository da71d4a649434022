"""Consume, transform, produce: each input has its effect exactly once, whichever process is killed."""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import NewBroker
from tests.ports import lasting_address

from .pipeline import Application, Pipeline

STATIC, DYNAMIC = True, False
# Longer than the session of a member that is not static: the others take over its partitions.
SUSPENDED_S = 3.0


def test_six_kills_leave_each_effect_exactly_once(new_broker: NewBroker, tmp_path: Path) -> None:
    # A fixed seed: this test is part of every run.
    copy_with_kills(new_broker, tmp_path, members=[STATIC], kills=6, seed=20_003)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_a_static_member(new_broker: NewBroker, tmp_path: Path) -> None:
    copy_with_kills(new_broker, tmp_path, members=[STATIC], kills=100, seed=any_seed())


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_dynamic_members(new_broker: NewBroker, tmp_path: Path) -> None:
    copy_with_kills(new_broker, tmp_path, members=[DYNAMIC, DYNAMIC], kills=100, seed=any_seed())


def any_seed() -> int:
    return random.SystemRandom().randrange(1 << 32)


def copy_with_kills(
    new_broker: NewBroker, directory: Path, *, members: Sequence[bool], kills: int, seed: int
) -> None:
    """Copy a topic in transactions while applications and broker are killed at random."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    broker = new_broker(kafka=lasting_address()).start()
    pipeline = Pipeline(broker, directory, members, dice)
    done: Counter[str] = Counter()
    try:
        pipeline.start()
        pipeline.copy_more(1)
        while done.total() < kills:
            wait_for_a_random_time(pipeline, dice)
            done[kill_something(pipeline, dice)] += 1
            if len(members) > 1 and dice.random() < 0.2:
                pipeline.keep_running()
                make_a_zombie(dice.choice(pipeline.applications))
        pipeline.copy_more(100)
        pipeline.finish()
    except AssertionError as failed:
        logs = "\n".join(f"{each.name}:\n{each.last_output()}" for each in pipeline.applications)
        logs += f"\nbroker:\n{broker.errors.text()}"
        raise AssertionError(f"seed {seed}, after {dict(done)}: {failed}\n{logs}") from failed
    finally:
        pipeline.end()
    stats = {
        word: sum(each.count(word) for each in pipeline.applications) for word in ("committed", "aborted")
    }
    gave_up = sum(each.gave_up for each in pipeline.applications)
    print(
        f"killed {dict(done)}, {pipeline.copy.total} effects, transactions {stats}, gave up {gave_up} times"
    )


def wait_for_a_random_time(pipeline: Pipeline, dice: random.Random) -> None:
    """Wait mostly until work has resumed, sometimes only while everything is starting."""
    pipeline.keep_running()
    if dice.random() < 0.75:
        pipeline.copy_more(dice.randrange(1, 500))
        threading.Event().wait(dice.uniform(0, 0.05))
    else:
        threading.Event().wait(dice.uniform(0, 1.5))


def kill_something(pipeline: Pipeline, dice: random.Random) -> str:
    """Kill the broker, an application or both; return which."""
    victims = dice.choices(("application", "broker", "both"), weights=(4, 3, 2))[0]
    if victims != "broker":
        dice.choice(pipeline.applications).kill()
    if victims != "application":
        pipeline.broker.kill()
    return victims


def make_a_zombie(application: Application) -> None:
    """Suspend an application beyond the end of its session and resume it in the middle of its work."""
    application.suspend()
    threading.Event().wait(SUSPENDED_S)
    application.resume()
