"""Writes the tables of the guide that follow from the code; with --check says whether they are current."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from alpacamq.api.rest.reference import routes_page
from alpacamq.node.reference import options_page, topic_settings_page
from alpacamq.protocol.apis import APIS

GUIDE = Path(__file__).parent.parent / "docs" / "guide"
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def apis_page() -> str:
    rows = [
        f"| {api.name} | {key} | {api.min_version} to {api.max_version} |"
        for key, api in sorted(APIS.items())
    ]
    return "| request | key | versions |\n|---|---|---|\n" + "\n".join(rows) + "\n"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "apis": apis_page,
    "http-routes": routes_page,
    "options": options_page,
    "topic-settings": topic_settings_page,
}


def current(text: str) -> str:
    """`text` with its generated blocks as the code has them now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n{block[3]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a page is out of date"
    )
    check_only = parser.parse_args().check
    outdated = [page for page in sorted(GUIDE.glob("*.md")) if current(page.read_text()) != page.read_text()]
    for page in outdated:
        if check_only:
            print(f"{page.name} is out of date: run make docs", file=sys.stderr)
        else:
            page.write_text(current(page.read_text()))
    return 1 if check_only and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
