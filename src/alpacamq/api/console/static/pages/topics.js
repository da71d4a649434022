// The list of topics, and one topic with its partitions, settings and rates.

import { get, path } from "../api.js";
import { chart, sparkline } from "../chart.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { history, latest, omitted, toned, values, windowOf, WINDOWS } from "../history.js";
import { toDeadLetters, toDelayed, toGroup, toMessages, toProduce, toSubjects, toTopic, toTopicChanges } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { bar, card, choice, heading, stat, stats, table, trail } from "../parts.js";

export function topics(view, _, query) {
  let isInternal = query.get("internal") === "true";
  let found = null;
  const list = h("div");
  const { filter, shown, every } = listing(view, query, "Filter topics by name", () => found && show(list, draw(found)));
  const internal = h("input", {
    type: "checkbox",
    checked: isInternal,
    on: {
      change: (event) => {
        isInternal = event.currentTarget.checked;
        view.keep({ internal: isInternal });
        again();
      },
    },
  });
  show(
    view.main,
    heading("Topics", [h("a", { class: "button", href: "#/produce" }, "Produce"), h("a", { class: "button primary", href: "#/new-topic" }, "New topic")]),
    h("div", { class: "tools" }, filter, h("label", { class: "check" }, internal, "Show internal topics")),
    list,
  );
  const load = async (signal) => {
    const [{ topics: listed, next }, published] = await Promise.all([
      get("/topics", { limit: LIMIT, internal: isInternal }, signal),
      history({ measure: "published" }, 900, signal, 40),
    ]);
    return { listed, next, published };
  };
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.listed, (row) => row.name);
    const rates = (row) => values(answer.published, "published", { topic: row.name });
    return [
      table(
        [
          { label: "Topic", kind: "name", cell: (row) => h("a", { href: toTopic(row.name) }, row.name) },
          { label: "Partitions", kind: "number wide", cell: (row) => format.count(row.partitions) },
          { label: "Messages", kind: "number", cell: (row) => format.count(row.messages) },
          { label: "Size", kind: "number wide", cell: (row) => format.bytes(row.size_bytes) },
          { label: "Published", kind: "number", cell: (row) => format.rate(latest(rates(row))) },
          { label: "15 min", kind: "wide", cell: (row) => sparkline(rates(row)) },
        ],
        rows,
        { key: (row) => row.name, label: "Topics", empty: isFiltered ? "No topic matches." : "No topics yet." },
      ),
      pager,
      answer.next ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} are listed.`) : null,
      omitted(answer.published, "topics"),
    ];
  };
  const again = view.live(list, load, draw, { every });
  return "Topics";
}

export function topic(view, { topic: name }, query) {
  let seconds = windowOf(query);
  const body = h("div", { class: "stack" });
  const actions = [
    h("a", { class: "button", href: toTopicChanges(name) }, "Edit"),
    h("a", { class: "button", href: toMessages(name) }, "Browse"),
    h("a", { class: "button primary", href: toProduce(name) }, "Produce"),
  ];
  show(view.main, trail(["Topics", "#/topics"], [name]), heading(name, actions), body);
  const load = async (signal) => {
    const [described, rates] = await Promise.all([
      get(path`/topics/${name}`, {}, signal),
      history({ topic: name }, seconds, signal),
    ]);
    return { described, rates };
  };
  const draw = ({ described, rates }) => {
    const parts = described.partitions;
    const sum = (number) => parts.reduce((total, part) => total + number(part), 0);
    const published = values(rates, "published", { topic: name });
    const consumed = values(rates, "consumed", { topic: name });
    const change = (chosen) => {
      seconds = chosen;
      view.keep({ window: chosen });
      again();
    };
    const lags = rates.series.filter((each) => each.measure === "lag").map((each) => ({ label: each.group, values: each.values }));
    return [
      stats(
        stat("Published", format.rate(latest(published))),
        stat("Consumed", format.rate(latest(consumed))),
        stat("Messages", format.brief(sum((part) => part.end_offset - part.start_offset))),
        stat("Size", format.bytes(sum((part) => part.size_bytes))),
        stat("Partitions", format.count(parts.length)),
      ),
      card(
        h("span", { class: "split" }, "Messages per second", choice("Window", WINDOWS, seconds, change)),
        chart({
          id: "flow",
          title: "Messages per second",
          times: rates.times,
          unit: format.rate,
          series: [
            { label: "published", values: published, tone: "tone-1" },
            { label: "consumed", values: consumed, tone: "tone-2" },
          ],
        }),
        omitted(rates, "topics and groups"),
      ),
      lags.length
        ? card("Lag by group", chart({ id: "lag", title: "Lag by group", times: rates.times, series: toned(lags) }), h("p", { class: "chips" }, lags.map(({ label }) => h("a", { href: toGroup(label) }, label))))
        : null,
      card("Partitions", partitions(name, parts)),
      card("Settings", settings(described)),
      h(
        "p",
        { class: "chips" },
        h("a", { href: toDelayed(name) }, "Delayed messages"),
        h("a", { href: toSubjects({ contains: `${name}-` }) }, "Schemas"),
        name.endsWith(".dlq") ? h("a", { href: toDeadLetters(name) }, "Dead letters") : null,
      ),
    ];
  };
  const again = view.live(body, load, draw, { actions });
  return name;
}

function partitions(name, parts) {
  const largest = Math.max(...parts.map((part) => part.size_bytes), 1);
  return table(
    [
      { label: "Partition", kind: "number", cell: (part) => h("a", { href: toMessages(name, { partition: part.partition }) }, part.partition) },
      { label: "Start", kind: "number wide", cell: (part) => format.count(part.start_offset) },
      { label: "End", kind: "number", cell: (part) => format.count(part.end_offset) },
      { label: "Messages", kind: "number", cell: (part) => format.count(part.end_offset === null ? null : part.end_offset - part.start_offset) },
      { label: "Size", kind: "number", cell: (part) => (part.size_bytes === null ? format.count(null) : format.bytes(part.size_bytes)) },
      { label: "", kind: "wide", cell: (part) => bar([["bytes", part.size_bytes, "tone-1"]], largest) },
      { label: "Uncommitted", kind: "number wide", cell: (part) => format.count(part.end_offset === null ? null : part.end_offset - part.last_stable_offset) },
      { label: "Leader", kind: "number wide", cell: (part) => (part.leader < 0 ? "none" : `${part.leader}, epoch ${part.leader_epoch}`) },
    ],
    parts,
    { key: (part) => String(part.partition), label: "Partitions" },
  );
}

function settings({ settings: all, overrides }) {
  const rows = Object.entries(all).sort(([one], [other]) => Number(other in overrides) - Number(one in overrides) || one.localeCompare(other));
  return h(
    "details",
    { class: "fold" },
    h("summary", null, `${rows.length} settings, ${Object.keys(overrides).length} overridden`),
    table(
      [
        { label: "Setting", kind: "name", cell: ([name]) => name },
        { label: "Value", cell: ([, value]) => h("code", null, value || "–") },
        { label: "", cell: ([name]) => (name in overrides ? h("span", { class: "badge" }, "own") : null) },
      ],
      rows,
      { key: ([name]) => name, label: "Settings" },
    ),
  );
}
