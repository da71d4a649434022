"""Generates the parts of docs/ that follow from the code: whole pages, and marked tables.

With --check only reports outdated pages.
"""

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from client_matrix import kafka_clients, other_clients
from error_reference import error_reference
from grpc_reference import grpc_reference
from http_reference import http_reference

from alpacamq.api.grpc import dispatch as grpc_dispatch
from alpacamq.api.kafka.rights import rights_page
from alpacamq.api.registry import app as registry
from alpacamq.api.rest import rights as http_rights
from alpacamq.api.rest.table import routes_page
from alpacamq.api.sqs import rights as sqs_rights
from alpacamq.cli import reference as alpacactl
from alpacamq.cluster.broker_config import BROKER_NAMES
from alpacamq.model.lanes import WEIGHTS, Lane
from alpacamq.node.config import options_page, topic_settings_page
from alpacamq.protocol.apis import APIS
from alpacamq.queues.chunks import NEXT_STATES, State
from alpacamq.telemetry.metrics_catalogue import metrics_page

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MEANINGS: Mapping[State | None, str] = {
    State.AVAILABLE: "ready to be delivered",
    State.ACQUIRED: "leased to a consumer until its deadline",
    State.BACKOFF: "failed, available again when its backoff ends",
    State.MOVING: "being moved to another topic: dead letter or redrive",
    None: "acknowledged or moved, not delivered again to this group",
}


def apis_page() -> str:
    rows = [
        f"| {api.name} | {key} | {api.min_version} to {api.max_version} |"
        for key, api in sorted(APIS.items())
    ]
    return "| request | key | versions |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def broker_settings_page() -> str:
    rows = [
        f"| `{name}` | `{broker_name}` |" for name, broker_name in BROKER_NAMES.items() if name != broker_name
    ]
    return "| topic | broker |\n|---|---|\n" + "\n".join(rows) + "\n"


def queue_states_page() -> str:
    rows = [
        f"| {_name(state)} | {meaning} | {', '.join(_names(_after(state)))} |"
        for state, meaning in MEANINGS.items()
    ]
    return "| state | meaning | goes to |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _after(state: State | None) -> Collection[State | None]:
    return () if state is None else NEXT_STATES[state]


def _names(states: Collection[State | None]) -> Iterator[str]:
    return (_name(state) for state in MEANINGS if state in states)


def _name(state: State | None) -> str:
    return "done" if state is None else state.name.lower()


def decisions_page() -> str:
    rows = []
    for page in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        number, _, title = page.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        rows.append(f"| {number} | [{title}]({page.name}) |")
    return "| | |\n|---|---|\n" + "\n".join(rows) + "\n"


def lanes_page() -> str:
    total = sum(WEIGHTS.values())
    rows = [f"| {lane.text} | {WEIGHTS[lane] / total:.0%} |" for lane in Lane]
    return "| lane | share of deliveries |\n|---|---|\n" + "\n".join(rows) + "\n"


def replication_stories_page() -> str:
    """The transcripts of the simulator, each with its first comment as a heading."""
    stories = []
    for path in sorted((DOCS.parent / "tests" / "simulation" / "transcripts").glob("*.txt")):
        title, _, story = path.read_text().partition("\n")
        stories.append(f"### {title.removeprefix('# ').removesuffix('.')}\n\n```text\n{story.strip()}\n```\n")
    return "\n".join(stories)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "alpacactl-commands": alpacactl.commands_page,
    "alpacactl-options": alpacactl.options_page,
    "apis": apis_page,
    "broker-settings": broker_settings_page,
    "decisions": decisions_page,
    "grpc-rights": grpc_dispatch.rights_page,
    "http-rights": http_rights.rights_page,
    "http-routes": routes_page,
    "kafka-clients": kafka_clients,
    "kafka-rights": rights_page,
    "metrics": metrics_page,
    "lanes": lanes_page,
    "options": options_page,
    "other-clients": other_clients,
    "queue-states": queue_states_page,
    "registry-rights": registry.rights_page,
    "registry-routes": registry.routes_page,
    "replication-stories": replication_stories_page,
    "sqs-rights": sqs_rights.rights_page,
    "topic-settings": topic_settings_page,
}
PAGES: Mapping[Path, Callable[[], str]] = {
    DOCS / "reference" / "errors.md": error_reference,
    DOCS / "reference" / "grpc.md": grpc_reference,
    DOCS / "reference" / "http.md": http_reference,
}


def current(page: Path) -> str:
    """The page as the code has it now."""
    if page in PAGES:
        return PAGES[page]()
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n{block[3]}", page.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a page is out of date"
    )
    check_only = parser.parse_args().check
    outdated = []
    for page in sorted({*DOCS.rglob("*.md"), *PAGES}):
        text = current(page)
        if page.exists() and page.read_text() == text:
            continue
        outdated.append(page)
        if check_only:
            print(f"{page.relative_to(DOCS.parent)} is out of date: run make docs", file=sys.stderr)
        else:
            page.write_text(text)
    return 1 if check_only and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
