// Long lists: filtered by name and shown page by page. Filter and page are kept in the address.

import { h } from "./dom.js";
import * as format from "./format.js";

const ROWS = 100;
// Loading thousands of rows takes the broker tens of milliseconds.
const MANY = 1000;
const EVERY_MS = 2000;
const EVERY_MS_OF_MANY = 10_000;
/** The most rows that a list has. */
export const LIMIT = 10_000;

/** `redraw` shows the list again, as filtered by `filter` and divided by `shown`. */
export function listing(view, query, label, redraw, hint = "Filter by name") {
  let wanted = query.get("filter") ?? "";
  let page = Number(query.get("page")) || 1;
  let every = EVERY_MS;
  const change = () => {
    view.keep({ filter: wanted, page: page > 1 ? page : "" });
    redraw();
  };
  const go = (number) => () => {
    page = number;
    change();
    window.scrollTo(0, 0);
  };
  const filter = h("input", {
    type: "search",
    placeholder: hint,
    "aria-label": label,
    value: wanted,
    on: {
      input: (event) => {
        wanted = event.currentTarget.value;
        page = 1;
        change();
      },
    },
  });
  /** Return the rows of the page, and what leads to the others. */
  const shown = (rows, name) => {
    every = rows.length > MANY ? EVERY_MS_OF_MANY : EVERY_MS;
    const text = wanted.toLowerCase();
    const matching = text ? rows.filter((row) => name(row).toLowerCase().includes(text)) : rows;
    page = Math.min(Math.max(page, 1), Math.ceil(matching.length / ROWS) || 1);
    const first = (page - 1) * ROWS;
    const last = Math.min(first + ROWS, matching.length);
    const pager = h(
      "nav",
      { class: "pager", "aria-label": "Pages" },
      h("button", { type: "button", disabled: page === 1, on: { click: go(page - 1) } }, "← Previous"),
      h("span", { class: "note", role: "status" }, `${format.count(first + 1)} to ${format.count(last)} of ${format.count(matching.length)}`),
      h("button", { type: "button", disabled: last === matching.length, on: { click: go(page + 1) } }, "Next →"),
    );
    return { rows: matching.slice(first, last), pager: matching.length > ROWS ? pager : null, isFiltered: text !== "" };
  };
  return { filter, shown, every: () => every };
}
