"""Runs the first screen of the README against a broker, and draws docs/images/first-message.svg of it.

The commands and the program are the README's own. Needs kcat.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "first-message.svg"
sys.path.insert(0, str(ROOT))

from tests.brokers import Broker  # noqa: E402 - the broker as a process, with ports of its own

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
READY = re.compile(r"AlpacaMQ .* is ready after [\d.]+ s")
# Of those that the broker prints, the ones that are used here.
LISTENERS = {"kafka": "127.0.0.1:9092", "sqs": "127.0.0.1:9324"}
LINE_PX, LEFT_PX, TOP_PX, WIDTH_PX = 20, 20, 56, 860
# A line appears this long after the one before; a command is typed meanwhile.
OUTPUT_S, COMMAND_S = 0.25, 1.4


class Line(NamedTuple):
    """A line of the terminal: a command, a remark on what follows, or output."""

    kind: str
    text: str


def first_screen() -> tuple[str, str]:
    """Return the command and the program that the README begins with."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    (_, command), (_, program) = blocks[:2]
    return command.strip(), program


def record(directory: Path) -> list[Line]:
    """Run everything and return the lines of the terminal."""
    broker = Broker(directory / "data")
    broker.start()
    try:
        return _session(broker, directory)
    finally:
        broker.end()


def _session(broker: Broker, directory: Path) -> list[Line]:
    ready = broker.output.find(READY)
    assert ready is not None
    addresses = {
        "localhost:9092": broker.address,
        "localhost:8080": broker.http_address,
        "localhost:9324": broker.sqs_address,
    }
    produce, program = first_screen()
    (directory / "receive.py").write_text(_at(program, addresses))
    lines = [Line("command", "make run"), Line("output", ready[0])]
    lines += [Line("output", f"  {name:8} {address}") for name, address in LISTENERS.items()]
    lines += [Line("output", ""), Line("remark", "# another terminal: write with a Kafka client …")]
    topic = re.search(r"-t (\S+)", produce)
    assert topic is not None
    steps = [
        (None, produce),
        ("# … receive and delete with boto3, an AWS SDK …", "python receive.py"),
        ("# … and the log still has it, for every other reader", f"alpacactl consume {topic[1]} --exit"),
        (None, "alpacactl queue list"),
    ]
    for remark, command in steps:
        lines += [Line("remark", remark)] if remark else []
        lines.append(Line("command", command))
        lines += [Line("output", each) for each in _run(_at(command, addresses), addresses, directory)]
    return lines


def _at(text: str, addresses: dict[str, str]) -> str:
    for documented, actual in addresses.items():
        text = text.replace(documented, actual)
    return text


def _run(command: str, addresses: dict[str, str], directory: Path) -> Sequence[str]:
    done = subprocess.run(
        ["sh", "-e", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=directory,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ALPACACTL_BROKER": addresses["localhost:9092"],
            "ALPACACTL_HTTP": addresses["localhost:8080"],
            "ALPACACTL_CONFIG": str(directory / "alpacactl.toml"),
            "COLUMNS": "0",
        },
    )
    return done.stdout.rstrip("\n").split("\n") if done.stdout.strip() else []


def draw(lines: Sequence[Line]) -> str:
    """Return the terminal as a picture in which the lines appear one after the other."""
    height = TOP_PX + LINE_PX * len(lines) + 10
    parts = [_HEAD.format(width=WIDTH_PX, height=height, inner=WIDTH_PX - 1, bottom=height - 1)]
    after_s = 0.0
    for number, line in enumerate(lines):
        after_s += COMMAND_S if line.kind == "command" else OUTPUT_S
        prompt = '<tspan class="prompt">$ </tspan>' if line.kind == "command" else ""
        parts.append(
            f'  <text class="{line.kind}" x="{LEFT_PX}" y="{TOP_PX + LINE_PX * number}" '
            f'style="animation-delay: {after_s:.2f}s">{prompt}{escape(line.text)}</text>\n'
        )
    return "".join([*parts, "</svg>\n"])


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="title desc">
  <title id="title">The first message</title>
  <desc id="desc">A terminal: kcat writes a message to a topic, boto3 receives and deletes it from the same topic, and alpacactl still reads it from the log.</desc>
  <style>
    text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328; }}
    .command, .output, .remark {{ animation: appear 0.2s backwards; }}
    .command {{ font-weight: 600; }}
    .remark {{ fill: #57606a; }}
    .prompt {{ fill: #15803d; }}
    .panel {{ fill: #ffffff; stroke: #d0d7de; }}
    .button {{ fill: #d0d7de; }}
    @keyframes appear {{ from {{ opacity: 0; }} }}
    @media (prefers-reduced-motion) {{ text {{ animation: none !important; }} }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3; }}
      .remark {{ fill: #9da7b3; }}
      .prompt {{ fill: #4ade80; }}
      .panel {{ fill: #0f1520; stroke: #30363d; }}
      .button {{ fill: #30363d; }}
    }}
  </style>
  <rect class="panel" x="0.5" y="0.5" width="{inner}" height="{bottom}" rx="8"/>
  <circle class="button" cx="20" cy="20" r="5"/>
  <circle class="button" cx="38" cy="20" r="5"/>
  <circle class="button" cx="56" cy="20" r="5"/>
"""  # noqa: E501 - one element a line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PICTURE, help="the file to write")
    with tempfile.TemporaryDirectory() as directory:
        parser.parse_args().output.write_text(draw(record(Path(directory))))


if __name__ == "__main__":
    main()
