// Recent traces, traces of a message, and the timeline of one trace.

import { find, path } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toMessages, toTrace, toTraces } from "../links.js";
import { badge, card, empty, field, heading, select, stat, stats, table, trail } from "../parts.js";

const STATUSES = ["published", "delayed", "in-flight", "acked", "dead-lettered", "expired", "cancelled"];
const TONES = { acked: "good", "dead-lettered": "bad", expired: "bad", "in-flight": "live", delayed: "warn", published: "live" };
const STEP_TONES = [
  [/^publish|replicated|redriven/, "tone-1"],
  [/\.acked$/, "tone-2"],
  [/^delay|timeout|nacked|extended/, "tone-3"],
  [/rejected|dlq|expired|cancelled/, "tone-bad"],
];

export function traces(view, _, query) {
  const wanted = Object.fromEntries(["topic", "partition", "offset", "key", "status"].map((name) => [name, query.get(name) ?? ""]));
  const list = h("div");
  show(view.main, heading("Traces"), controls(wanted), list);
  const isSearch = wanted.partition !== "" || wanted.offset !== "" || wanted.key !== "";
  const load = (signal) => find(isSearch ? "/traces/search" : "/traces", { ...wanted, limit: 100 }, signal);
  view.live(list, load, (found) =>
    table(
      [
        { label: "Trace", kind: "name", cell: (row) => h("a", { href: toTrace(row.trace_id) }, h("code", null, row.trace_id.slice(0, 16))) },
        { label: "Message", cell: (row) => place(row) },
        { label: "Status", cell: (row) => badge(row.status, TONES[row.status]) },
        { label: "Steps", kind: "number wide", cell: (row) => format.count(row.events) },
        { label: "Took", kind: "number", cell: (row) => format.span(row.duration_ms) },
        { label: "Began", kind: "wide", cell: (row) => format.timestamp(Date.parse(row.started_at)) },
      ],
      found?.traces ?? [],
      { key: (row) => row.trace_id, label: "Traces", empty: isSearch ? "No trace found: the message was not sampled, or its trace was deleted by retention." : "No traces yet." },
    ),
  );
  return "Traces";
}

function place(row) {
  if (row.offset === null || row.offset === undefined) return row.topic ?? "–";
  const where = { partition: row.partition, by: "offset", at: row.offset, open: `${row.partition}/${row.offset}` };
  return h("a", { href: toMessages(row.topic, where) }, `${row.topic}/${row.partition}/${row.offset}`);
}

function controls(wanted) {
  const topic = h("input", { value: wanted.topic, autocomplete: "off" });
  const partition = h("input", { type: "number", min: 0, value: wanted.partition });
  const offset = h("input", { type: "number", min: 0, value: wanted.offset });
  const key = h("input", { value: wanted.key, autocomplete: "off" });
  const id = h("input", { placeholder: "32 hex digits", pattern: "\\s*[0-9a-fA-F]{32}\\s*", autocomplete: "off", spellcheck: "false" });
  const status = select([["", "any"], ...STATUSES.map((name) => [name, name])], wanted.status);
  const submit = (event) => {
    event.preventDefault();
    if (id.value) location.hash = toTrace(id.value.trim().toLowerCase());
    else location.hash = toTraces({ topic: topic.value, partition: partition.value, offset: offset.value, key: key.value, status: status.value });
  };
  return h(
    "form",
    { class: "controls", on: { submit } },
    field("Topic", topic),
    field("Partition", partition),
    field("Offset", offset),
    field("Key", key),
    field("Status", status),
    field("Trace id", id),
    h("button", { class: "primary" }, "Search"),
  );
}

export function trace(view, { trace: id }) {
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Traces", "#/traces"], [id.slice(0, 16)]), heading("Trace"), body);
  view.live(
    body,
    (signal) => find(path`/traces/${id}`, {}, signal),
    (found) => (found?.events?.length ? journey(found) : empty("Unknown trace, or deleted by retention.")),
  );
  return `Trace ${id.slice(0, 16)}`;
}

/** Microseconds since 1970 of an RFC 3339 text; Date.parse knows milliseconds only. */
function micros(text) {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? "";
  return Math.floor(Date.parse(text.replace(/\.\d+/, "")) * 1000) + Number(fraction.padEnd(6, "0").slice(0, 6));
}

/** Whether a client read the log without naming a group, such as this console. */
const isUngroupedRead = (event) => event.name === "consume.fetched" && !event.group && !("delivery_count" in (event.attributes ?? {}));

/**
 * Split events into the journey of the message and reads without a group. Kafka clients do not name their group in a fetch:
 * their reads belong to the journey if another step follows.
 */
function split(events) {
  const end = events.findLastIndex((event) => !isUngroupedRead(event));
  if (end < 0) return [events, []];
  const isListedApart = (event, at) => isUngroupedRead(event) && (at > end || event.door === "http");
  return [events.filter((event, at) => !isListedApart(event, at)), events.filter(isListedApart)];
}

function ungroupedReads(events) {
  return table(
    [
      { label: "Read at", cell: (row) => format.timestamp(micros(row.at) / 1000) },
      { label: "API", cell: (row) => row.door },
      { label: "By", kind: "name", cell: (row) => row.consumer ?? "–" },
    ],
    events,
    { key: (row) => `${row.span_id}/${row.at}`, label: "Reads without a group" },
  );
}

function journey({ trace_id: id, status, events: all }) {
  const [events, apart] = split(all);
  const times = events.map((event) => micros(event.at));
  const [first, last] = [times[0], times.at(-1)];
  const whole = Math.max(last - first, 1);
  const message = events.find((event) => event.offset !== null && event.offset !== undefined) ?? events[0];
  return [
    stats(
      stat("Status", status, { tone: TONES[status] }),
      stat("Message", place(message)),
      stat("Took", format.span((last - first) / 1000), { note: `${events.length} steps` }),
      stat("Began", format.clock(first / 1000), { note: format.timestamp(first / 1000).slice(0, 10) }),
    ),
    card(
      "Journey",
      h("ol", { class: "journey" }, events.map((event, at) => step(event, times, at, first, whole))),
    ),
    apart.length ? card("Reads without a group", ungroupedReads(apart)) : null,
    h("p", { class: "note" }, "Trace id ", h("code", null, id)),
  ];
}

function attribute(name, value) {
  if (/_ms$|_at$/.test(name) && Number(value) > 1e12) return format.timestamp(Number(value));
  return format.excerpt(typeof value === "string" ? value : JSON.stringify(value), 200);
}

function step(event, times, at, first, whole) {
  const tone = STEP_TONES.find(([pattern]) => pattern.test(event.name))?.[1] ?? "tone-4";
  const since = at ? times[at] - times[at - 1] : null;
  const from = at ? ((times[at - 1] - first) / whole) * 100 : 0;
  const to = ((times[at] - first) / whole) * 100;
  const who = [
    event.door,
    event.group ? `group ${event.group}` : null,
    event.consumer ? `consumer ${event.consumer}` : null,
    event.topic ? `${event.topic}${event.partition === null || event.partition === undefined ? "" : `/${event.partition}`}${event.offset === null || event.offset === undefined ? "" : `/${event.offset}`}` : null,
  ];
  const more = Object.entries(event.attributes ?? {});
  return h(
    "li",
    { class: `row step ${tone}`, "data-key": `${event.span_id}/${event.name}/${at}` },
    h("span", { class: "since" }, since === null ? "start" : `+${format.span(since / 1000)}`),
    h("span", { class: "dot" }),
    h(
      "div",
      { class: "what" },
      h("b", null, event.name),
      h("span", { class: "note" }, who.filter(Boolean).join(" · ")),
      more.length ? h("span", { class: "note more-of-it" }, more.map(([name, value]) => h("span", null, `${name} `, h("b", null, attribute(name, value))))) : null,
      h("div", { class: "track", "aria-hidden": "true" }, h("i", { style: { left: `${from}%`, width: `${Math.max(to - from, 0.5)}%` } })),
    ),
  );
}
