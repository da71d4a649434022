"""Where does the broker's time go for a single message, in this version and an earlier one?

`python -m benchmarks.flame_graphs REVISION` gives both versions the load of some cases of
`benchmarks.earlier_version`, samples the brokers with py-spy, and draws docs/images/flame-*.svg: the stacks
of the event loop of both versions at one scale, in µs of CPU per message. It asks about the code, not about
the machine, so it writes no results.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from .earlier_version import CASES, Case, checked_out
from .machine import REPOSITORY
from .profile_paths import EVENT_LOOP, sampled, where
from .server_cost import cpu_ns
from .servers import AlpacaMQ, Server, running
from .session import ROOM

IMAGES = REPOSITORY / "docs" / "images"
# By the end of the picture's name.
PATHS: Mapping[str, str] = {
    "kafka": "produce, one message per request, pipelined on 4 connections",
    "publish": "HTTP: publish, one message per request, 16 connections",
    "receive": "HTTP: receive and acknowledge by ten",
    "sqs": "SQS: receive and delete by ten",
}
SECONDS = 10
_ROOT = "Runner.run ("
_WIDTH, _ROW, _MARGIN = 1000, 17, 10
# Narrower frames are left out, and with them what they call.
_LEAST = 2.0
_CHARACTER = 6.2
_MAX_DEPTH = 34
# The first that a place contains gives its colour.
_COLOURS = (
    ("`api/", "blue"),
    ("`protocol/", "violet"),
    ("`broker/", "green"),
    ("`queues/", "amber"),
    ("`log/", "red"),
)
_LEGEND = (
    ("blue", "APIs"),
    ("violet", "protocol"),
    ("green", "broker"),
    ("amber", "queues"),
    ("red", "log"),
    ("box", "event loop, libraries, model"),
)
_DESCRIPTION = (
    "Stacks of the event loop in two versions, callers above the functions they call. The width of a "
    "function is its share of the CPU time of a message; both versions have one scale."
)
_STYLE = """
    text { font: 11px ui-monospace, "DejaVu Sans Mono", monospace; fill: #1f2328; }
    .title { font: 600 14px system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
    .small { font: 12px system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
    .box { fill: #e8ebef; } .blue { fill: #bfdbfe; } .green { fill: #bbf7d0; } .amber { fill: #fde68a; }
    .red { fill: #fecaca; } .violet { fill: #ddd6fe; }
    rect { stroke: #ffffff; stroke-width: 0.5; }
    .page { fill: #ffffff; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .box { fill: #30363d; } .blue { fill: #1e3a6e; } .green { fill: #14532d; } .amber { fill: #5c4308; }
      .red { fill: #6b1f1f; } .violet { fill: #41308a; }
      rect { stroke: #0f1520; }
      .page { fill: #0f1520; }
    }
"""


@dataclass(slots=True)
class Frame:
    """A function in the stacks below one caller, and the samples in it and in what it calls."""

    samples: int = 0
    calls: dict[str, "Frame"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The stacks of one version under one load, and its CPU time per message."""

    version: str
    root: Frame
    cost_us: float


def profile(case: Case, server: Server, version: str, stacks: Path) -> Profile:
    """Sample a broker under the load of a case."""
    works = case(server)
    next(works)()
    messages, spent_ns = 0, 0
    with sampled(server.pid, stacks, SECONDS):
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            work = next(works)
            began_ns = cpu_ns(server.pid)
            messages += work()
            spent_ns += cpu_ns(server.pid) - began_ns
    return Profile(version=version, root=read_stacks(stacks.read_text()), cost_us=spent_ns / messages / 1000)


def read_stacks(text: str) -> Frame:
    """Merge the stacks of the event loop, as py-spy writes them; other threads are left out."""
    root = Frame()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        loop = next((index for index, frame in enumerate(frames) if frame.startswith(_ROOT)), None)
        if loop is None:
            continue
        places = [place for place in map(where, frames[loop + 1 :]) if place != EVENT_LOOP]
        at = root
        at.samples += int(count)
        for place in places:
            at = at.calls.setdefault(place, Frame())
            at.samples += int(count)
    return root


def draw(name: str, profiles: list[Profile]) -> str:
    """Draw the stacks of each version, one below the other, at one scale."""
    dearest_us = max(each.cost_us for each in profiles)
    y = 66
    parts: list[str] = []
    for each in profiles:
        width = (_WIDTH - 2 * _MARGIN) * each.cost_us / dearest_us
        depth = min(_depth(each.root, width / max(each.root.samples, 1)), _MAX_DEPTH)
        title = f"{each.version}: {each.cost_us:.1f} µs of CPU per message"
        parts.append(f'<text class="small" x="{_MARGIN}" y="{y}">{escape(title)}</text>')
        parts += _rectangles("all", each.root, _MARGIN, y + 8, width, _MAX_DEPTH)
        y += 8 + (depth + 1) * _ROW + 30
    legend = "".join(
        f'<rect class="{colour}" x="{_MARGIN + 130 * index}" y="32" width="12" height="12"/>'
        f'<text class="small" x="{_MARGIN + 130 * index + 17}" y="42">{text}</text>'
        for index, (colour, text) in enumerate(_LEGEND)
    )
    size = f'viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">
<title id="title">{escape(name)}</title>
<desc id="desc">{_DESCRIPTION}</desc>
<style>{_STYLE}</style>
<rect class="page" width="{_WIDTH}" height="{y}"/>
<text class="title" x="{_MARGIN}" y="22">{escape(name)}</text>
{legend}
{chr(10).join(parts)}
</svg>
"""


def _depth(frame: Frame, per_sample: float) -> int:
    return 1 + max(
        (_depth(each, per_sample) for each in frame.calls.values() if each.samples * per_sample >= _LEAST),
        default=0,
    )


def _rectangles(place: str, frame: Frame, x: float, y: float, width: float, levels: int) -> Iterator[str]:
    if width < _LEAST or not levels:
        return
    colour = next((colour for part, colour in _COLOURS if part in place), "box")
    text = place.replace("`", "")
    yield (
        f'<g><title>{escape(text)}</title><rect class="{colour}" x="{x:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{_ROW - 1}"/>'
    )
    room = int((width - 6) / _CHARACTER)
    # The function is what tells frames apart; its file is in the title.
    short = text.rpartition(" ")[2]
    if room >= 3:
        shown = text if len(text) <= room else short if len(short) <= room else short[: room - 1] + "…"
        yield f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(shown)}</text>'
    yield "</g>"
    for called, each in sorted(frame.calls.items(), key=lambda item: -item[1].samples):
        share = width * each.samples / frame.samples
        yield from _rectangles(called, each, x, y + _ROW, share, levels - 1)
        x += share


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame_graphs", description=__doc__)
    parser.add_argument("revision")
    parsed = parser.parse_args()
    with checked_out(parsed.revision) as tree, tempfile.TemporaryDirectory(dir=ROOM) as made:
        versions = {f"before ({parsed.revision})": tree, "this version": REPOSITORY}
        for end, name in PATHS.items():
            profiles: list[Profile] = []
            for version, source in versions.items():
                room = Path(made) / f"{end}-{len(profiles)}"
                with running(AlpacaMQ(source=source), room) as server:
                    profiles.append(profile(CASES[name], server, version, Path(made) / "stacks"))
            picture = IMAGES / f"flame-{end}.svg"
            picture.write_text(draw(name, profiles))
            costs = ", ".join(f"{each.cost_us:.1f} µs" for each in profiles)
            print(f"{picture.relative_to(REPOSITORY)}: {costs}")


if __name__ == "__main__":
    main()
