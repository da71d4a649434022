"""Sends numbered records one after the other until standard input ends, then reads all; runs in a pod.

Prints what was acknowledged, what of it is missing, and the longest time without an acknowledgement as JSON.
"""

import json
import os
import sys
import time
from threading import Event, Thread

import alpacamq

URL = f"alpaca://admin:{os.environ['ALPACAMQ_PASSWORD']}@{os.environ['ALPACACTL_HTTP'].partition(':')[0]}"


def main() -> None:
    """Send, read and compare."""
    name = sys.argv[1]
    stop = Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    Thread(target=wait_for_the_end, daemon=True).start()
    acknowledged: list[str] = []
    longest_s, last = 0.0, time.monotonic()
    with alpacamq.connect(URL) as mq:
        topic = mq.topic(name, value=str)
        while not stop.is_set():
            value = f"{name} {len(acknowledged)}"
            topic.send(value)
            acknowledged.append(value)
            now = time.monotonic()
            longest_s, last = max(longest_s, now - last), now
            if len(acknowledged) == 1:
                print("sending", flush=True)
        found = [message.value for message in topic.read(until="latest")]
    lost = sorted(set(acknowledged) - set(found))
    twice = len(found) - len(set(found))
    print(
        json.dumps(
            {
                "acknowledged": len(acknowledged),
                "lost": lost,
                "twice": twice,
                "longest_pause_s": round(longest_s, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
