"""How fluid is the console with 5,000 topics and 10,000 groups?

A real Chromium opens the lists, scrolls and filters them. Its clock takes the times: from the start of
the navigation until the first rows can be used, and the longest time between two frames. Frames are drawn
without a graphics card, by the cores that the broker uses as well.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import CDPSession, Page, sync_playwright

from . import command_line
from .command_line import GROUPS, QUICK_GROUPS, QUICK_TOPICS, TOPICS
from .report import OURS, Floor, Report
from .servers import AlpacaMQ, Server
from .session import Session
from .usage import Meter, Usage

# Typed letter by letter, and removed again.
FILTER = "00042"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
DESKTOP = {"width": 1280, "height": 800}
# Of three frames; what people take for immediate is twice as long.
STEP_FLOOR = Floor(at_most=50.0)
_ROW = "main tbody tr"
# Resolves when the first rows are there, which is when they can be used: rows are links.
_WATCH = """
window.opened = new Promise((resolve) =>
  new MutationObserver((_, watch) => {
    if (!document.querySelector("main tbody tr a")) return;
    watch.disconnect();
    requestAnimationFrame(() => resolve(performance.now()));
  }).observe(document, { childList: true, subtree: true }),
);
"""
# Runs `act(step)` in `steps` frames one after the other, and returns the longest time between two frames.
_LONGEST_FRAME = """
async ([action, steps, letters]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const input = document.querySelector("main input[type=search]");
  const actions = {
    scroll: (step) => window.scrollTo(0, (document.body.scrollHeight * step) / steps),
    filter: (step) => {
      const given = step % (2 * letters.length);
      input.value = letters.slice(0, given <= letters.length ? given : 2 * letters.length - given);
      input.dispatchEvent(new Event("input", { bubbles: true }));
    },
    turn: () => [...document.querySelectorAll(".pager button")].at(-1).click(),
  };
  await frame();
  let last = await frame(), longest = 0;
  for (let step = 1; step <= steps; step += 1) {
    actions[action](step);
    const now = await frame();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}
"""
STEPS = {"scroll": 60, "filter": 20, "turn": 20}


def run(session: Session, report: Report) -> None:
    program = shutil.which("chromium")
    if program is None:
        report.skip("the console", "there is no chromium (Debian: apt-get install chromium)")
        return
    topics, groups = (QUICK_TOPICS, QUICK_GROUPS) if session.is_quick else (TOPICS, GROUPS)
    server = AlpacaMQ(settings=command_line.SETTINGS).start(session.new_directory())
    try:
        command_line.fill(server, topics, groups)
        for name, count in (("topics", topics), ("groups", groups)):
            _measure(session, report, server, program, name, count)
    finally:
        server.stop()


def _measure(session: Session, report: Report, server: Server, program: str, name: str, count: int) -> None:
    usages: list[Usage] = []
    opened_s: list[float] = []
    longest_ms: dict[str, list[float]] = {action: [] for action in STEPS}
    cpu_ms: dict[str, list[float]] = {action: [] for action in STEPS}
    for _ in range(session.repeats):
        session.settle()
        with _page(program) as page:
            with Meter(server.pid) as meter:
                page.goto(f"http://{server.addresses['http']}/console/#/{name}")
                opened_s.append(page.evaluate("window.opened") / 1000)
            usages.append(meter.usage)
            metrics = page.context.new_cdp_session(page)
            metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
            for action, steps in STEPS.items():
                before_s = _main_thread_s(metrics)
                longest_ms[action].append(page.evaluate(_LONGEST_FRAME, [action, steps, FILTER]))
                cpu_ms[action].append(1000 * (_main_thread_s(metrics) - before_s) / steps)
            assert page.locator(_ROW).count() > 0
    quick = session.is_quick
    case = f"{name}, {count:,}"
    report(case=f"{case}: opened", server=OURS, unit="s", samples=opened_s, usages=usages)
    words = {"scroll": "scrolling", "filter": "filtering", "turn": "turning pages"}
    for action, word in words.items():
        report(case=f"{case}: longest frame while {word}", server=OURS, unit="ms", samples=longest_ms[action])
        report(
            case=f"{case}: {word}, one step",
            server=OURS,
            unit="ms of CPU of the page",
            samples=cpu_ms[action],
            floor=None if quick else STEP_FLOOR,
        )


def _main_thread_s(metrics: CDPSession) -> float:
    """Return the CPU time of the thread that runs the scripts and the layout of the page."""
    values = {each["name"]: each["value"] for each in metrics.send("Performance.getMetrics")["metrics"]}
    return float(values["TaskDuration"])


@contextmanager
def _page(program: str) -> Iterator[Page]:
    """Open a browser of its own, with an empty cache."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            page = browser.new_page(viewport=DESKTOP)  # type: ignore[arg-type]
            page.add_init_script(_WATCH)
            yield page
        finally:
            browser.close()
