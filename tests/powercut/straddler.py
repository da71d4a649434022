"""Transactions that are open during a power cut and committed after it.

`python -m tests.powercut.straddler '{…}' FILE`: like a client on another machine it outlives the cut. It ends
after the transaction during which FILE appears, or when its producer can do nothing more.
"""

import sys
from pathlib import Path

import msgspec

from .load import Settings, Work, one_transaction, run, transactional

NAME = "straddler"
HOLD_S = 1.5
# The broker must not end the transaction while the power is off.
TIMEOUT_MS = 60_000


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    stop = Path(sys.argv[2])

    def straddle(work: Work) -> None:
        producer = transactional(settings.kafka, NAME, TIMEOUT_MS)
        while not stop.exists():
            one_transaction(work, producer, hold_s=HOLD_S)

    run(Work(settings, NAME), straddle)


if __name__ == "__main__":
    main()
