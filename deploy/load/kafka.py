"""Load over Kafka's protocol: runs `alpacactl bench`, and exits with 1 if a threshold does not hold.

python3 deploy/load/kafka.py [--rate 2000] [--duration 30s] [--p99-ms 10] [ALPACACTL OPTION…]
"""

import argparse
import json
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--duration", default="30s")
    parser.add_argument(
        "--p99-ms", type=float, default=10, help="of publishing, and of reading what is published"
    )
    parser.add_argument("--alpacactl", default="alpacactl", help="the command")
    parsed, options = parser.parse_known_args()
    ran = subprocess.run(  # noqa: S603 - the command is the operator's
        [
            *(parsed.alpacactl, *options, "bench", "latency", "-o", "json"),
            *("--rate", str(parsed.rate), "--duration", parsed.duration),
        ],
        stdout=subprocess.PIPE,
        check=False,
    )
    if ran.returncode != 0:
        return ran.returncode
    found = json.loads(ran.stdout)
    failures = [
        f"{name}: p99 is {latency['p99']:.2f} ms, more than {parsed.p99_ms:g}"
        for name, latency in found["latency_ms"].items()
        if latency["p99"] > parsed.p99_ms
    ]
    planned = found["planned_messages"]
    if planned and found["messages"] < planned:
        failures.append(f"only {found['messages']} of {planned} messages: the rate was not kept")
    for name, latency in found["latency_ms"].items():
        shown = ", ".join(f"{which} {latency[which]:.2f} ms" for which in ("p50", "p99", "max"))
        print(f"{name:<12} {shown}")
    print(f"{found['messages']} messages, {found['messages_per_second']:.0f} a second")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
