// The message browser: pages of a topic from either end, from an offset or a timestamp, or by key.

import { get, path, Unreachable } from "../api.js";
import { h, show } from "../dom.js";
import { parseExactly } from "../exact.js";
import { exporter } from "../export.js";
import * as format from "../format.js";
import { toMessages, toProduce, toTopic } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { messageList } from "../message_list.js";
import { empty, field, heading, refused, select, table, trail } from "../parts.js";
import { tail } from "../tail.js";

const PAGE = 50;
const WAYS = [
  ["latest", "newest first"],
  ["live", "live, as they arrive"],
  ["earliest", "from the beginning"],
  ["offset", "from an offset"],
  ["time", "from a timestamp"],
  ["key", "by key"],
  ["filter", "by filter"],
];
// Ways that look through the topic.
const SEARCHES = new Set(["key", "filter"]);
const LABELS = { offset: "Offset", time: "Timestamp", key: "Key", filter: "Filter", live: "Filter" };
const FILTERED = new Set(["filter", "live"]);
const RETRY_MS = 1000;

export function messages(view, { topic }, query) {
  if (!topic) return chooseTopic(view, query);
  const wanted = {
    partition: query.get("partition") ?? "",
    by: query.get("by") ?? "latest",
    at: query.get("at") ?? "",
    places: query.get("places") ?? "",
    open: query.get("open"),
  };
  const form = h("div");
  const produce = h("a", { class: "button", href: toProduce(topic), hidden: true }, "Produce");
  const found = h("div", { class: "stack", "aria-busy": "true" }, empty("Reading…"));
  show(
    view.main,
    trail(["Topics", "#/topics"], [topic, toTopic(topic)], ["Messages"]),
    heading("Messages", produce),
    form,
    found,
  );
  browse(view, topic, wanted, form, found, produce);
  return `Messages of ${topic}`;
}

function chooseTopic(view, query) {
  let found = null;
  const list = h("div");
  const { filter, shown, every } = listing(view, query, "Filter topics by name", () => found && show(list, draw(found)));
  show(view.main, heading("Messages"), h("p", { class: "lead" }, "Which topic?"), h("div", { class: "tools" }, filter), list);
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.topics, (row) => row.name);
    return [
      table(
        [
          { label: "Topic", kind: "name", cell: (row) => h("a", { href: toMessages(row.name) }, row.name) },
          { label: "Messages", kind: "number", cell: (row) => format.count(row.messages) },
        ],
        rows,
        { key: (row) => row.name, label: "Topics", empty: isFiltered ? "No topic matches." : "No topics yet." },
      ),
      pager,
      answer.next ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} are listed.`) : null,
    ];
  };
  view.live(list, (signal) => get("/topics", { limit: LIMIT }, signal), draw, { every });
  return "Messages";
}

async function browse(view, topic, wanted, form, found, produce) {
  try {
    const described = await get(path`/topics/${topic}`, {}, view.signal);
    produce.hidden = false;
    show(form, controls(topic, wanted, described.partitions));
    // The leaders of the others do not answer.
    const readable = described.partitions.filter((part) => part.end_offset !== null);
    if (wanted.by === "live") return tail(view, topic, chosen(wanted, readable), wanted.at.trim(), found);
    const page = await read(topic, wanted, readable, view.signal);
    if (view.signal.aborted) return;
    show(found, drawn(view, topic, wanted, page));
    found.removeAttribute("aria-busy");
  } catch (error) {
    if (view.signal.aborted) return;
    if (error instanceof Unreachable) setTimeout(() => view.signal.aborted || browse(view, topic, wanted, form, found, produce), RETRY_MS);
    else {
      show(found, refused(error));
      found.removeAttribute("aria-busy");
    }
  }
}

/** Return the offsets by partition where to read, and where the previous and next pages begin. */
async function read(topic, wanted, all, signal) {
  const parts = chosen(wanted, all);
  if (SEARCHES.has(wanted.by)) return search(topic, wanted, parts, signal);
  const share = Math.ceil(PAGE / parts.length);
  let starts;
  if (wanted.places) starts = readPlaces(wanted.places);
  else if (wanted.by === "time") starts = await startsAt(topic, wanted, parts, signal);
  else if (wanted.by === "offset") starts = startsBy(parts, () => Number(wanted.at) || 0);
  else if (wanted.by === "earliest") starts = startsBy(parts, (part) => part.start_offset);
  else starts = startsBy(parts, (part) => part.end_offset - share);
  starts = clamped(parts, starts);
  const answer = await get(path`/topics/${topic}/messages`, { offsets: writePlaces(starts), limit: PAGE, decode: true }, signal, parseExactly);
  const isAtStart = parts.every((part) => starts[part.partition] <= part.start_offset);
  const isAtEnd = parts.every((part) => answer.next_offsets[part.partition] >= answer.end_offsets[part.partition]);
  const before = clamped(parts, startsBy(parts, (part) => starts[part.partition] - share));
  return {
    messages: wanted.by === "latest" ? answer.messages.toReversed() : answer.messages,
    earlier: isAtStart ? null : writePlaces(before),
    later: isAtEnd ? null : writePlaces(answer.next_offsets),
    note: null,
    starts,
    sought: null,
  };
}

function chosen(wanted, all) {
  const parts = wanted.partition === "" ? all : all.filter((part) => String(part.partition) === wanted.partition);
  if (!parts.length) throw new Error(wanted.partition === "" ? "no leader of a partition answers" : `partition ${wanted.partition} cannot be read`);
  return parts;
}

async function search(topic, wanted, parts, signal) {
  const starts = clamped(parts, wanted.places ? readPlaces(wanted.places) : startsBy(parts, (part) => part.start_offset));
  const sought = { [wanted.by]: wanted.at };
  const answer = await get(
    path`/topics/${topic}/messages/find`,
    { ...sought, offsets: writePlaces(starts), limit: PAGE, decode: true },
    signal,
    parseExactly,
  );
  const isAtEnd = Object.entries(answer.next_offsets).every(([part, next]) => next >= answer.end_offsets[part]);
  return {
    messages: answer.messages,
    earlier: null,
    later: isAtEnd ? null : writePlaces(answer.next_offsets),
    note: `${format.count(answer.messages.length)} of ${format.count(answer.looked_at)} messages match`,
    starts,
    sought,
  };
}

async function startsAt(topic, wanted, parts, signal) {
  const timestamp = new Date(wanted.at).getTime();
  if (Number.isNaN(timestamp)) throw new Error(`${wanted.at || "nothing"} is not a timestamp`);
  const starts = {};
  // One message per partition is enough to know the offset.
  for (const { partition } of parts) {
    const answer = await get(path`/topics/${topic}/partitions/${partition}/messages`, { timestamp, limit: 1, max_bytes: 1 }, signal);
    starts[partition] = answer.messages[0]?.offset ?? answer.next_offset;
  }
  return starts;
}

const startsBy = (parts, offset) => Object.fromEntries(parts.map((part) => [part.partition, offset(part)]));

function clamped(parts, starts) {
  const within = parts.filter((part) => starts[part.partition] !== undefined);
  return startsBy(within, (part) => Math.min(Math.max(starts[part.partition], part.start_offset), part.end_offset));
}

const writePlaces = (starts) => Object.entries(starts).map(([part, offset]) => `${part}:${offset}`).join(",");
const readPlaces = (text) => Object.fromEntries(text.split(",").map((each) => each.split(":").map(Number)));

function drawn(view, topic, wanted, { messages: list, earlier, later, note, starts, sought }) {
  const to = (places) => toMessages(topic, { partition: wanted.partition, by: wanted.by === "latest" || wanted.by === "time" ? "offset" : wanted.by, at: SEARCHES.has(wanted.by) ? wanted.at : "", places });
  const go = (places) => places && (location.hash = to(places));
  const keys = (event) => {
    if (["INPUT", "TEXTAREA", "SELECT"].includes(event.target.nodeName)) return;
    if (event.key === "[") go(earlier);
    if (event.key === "]") go(later);
  };
  document.addEventListener("keydown", keys, { signal: view.signal });
  const pager = h(
    "nav",
    { class: "pager", "aria-label": "Pages of messages" },
    earlier ? h("a", { class: "button", href: to(earlier) }, "← Earlier") : h("span", { class: "note" }, SEARCHES.has(wanted.by) ? "" : "Beginning of the topic."),
    note ? h("span", { class: "note" }, note) : null,
    later ? h("a", { class: "button", href: to(later) }, SEARCHES.has(wanted.by) ? "Continue →" : "Later →") : h("span", { class: "note" }, "End of the topic."),
  );
  return [messageList(topic, list, { open: wanted.open, nothing: sought ? "No message matches." : "No messages here." }), pager, exporter(topic, starts, sought, view.signal)];
}

function controls(topic, wanted, parts) {
  const partition = select([["", "all"], ...parts.map((part) => [String(part.partition), String(part.partition)])], wanted.partition);
  const at = h("input", { value: wanted.at, autocomplete: "off" });
  const by = select(WAYS, wanted.by, fit);
  const atField = field("Offset", at);
  function fit(way) {
    const isNeeded = way in LABELS;
    atField.hidden = !isNeeded;
    atField.classList.toggle("long", FILTERED.has(way));
    at.placeholder = way === "filter" ? 'value.total > 100 and key == "alice"' : way === "live" ? "all, or value.total > 100" : "";
    at.type = way === "time" ? "datetime-local" : way === "offset" ? "number" : "text";
    at.required = isNeeded && way !== "key" && way !== "live";
    if (way === "time") at.step = "1";
    else at.removeAttribute("step");
    if (way === "offset") at.min = "0";
    atField.querySelector("label").textContent = LABELS[way] ?? "";
    if (at.value === "" && wanted.by === way) at.value = wanted.at;
  }
  fit(wanted.by);
  const submit = (event) => {
    event.preventDefault();
    const place = toMessages(topic, { partition: partition.value, by: by.value, at: atField.hidden ? "" : at.value });
    if (location.hash === place) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = place;
  };
  return h(
    "form",
    { class: "controls", on: { submit } },
    field("Partition", partition),
    field("Read", by),
    atField,
    h("button", { class: "primary" }, "Read"),
  );
}
