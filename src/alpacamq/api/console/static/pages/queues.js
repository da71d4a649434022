// The list of queues, one queue with its lanes, and dead letters.

import { get, path, send } from "../api.js";
import { chart } from "../chart.js";
import { h, show } from "../dom.js";
import { parseExactly } from "../exact.js";
import * as format from "../format.js";
import { history, values, windowOf, WINDOWS } from "../history.js";
import { toDeadLetters, toGroup, toMessages, toQueue, toTopic } from "../links.js";
import { messageList } from "../message_list.js";
import { badge, bar, button, card, choice, confirm, heading, stat, stats, table, toast, trail } from "../parts.js";

const LANES = ["critical", "high", "normal", "low", "background"];
const PEEKED = 20;
const LETTERS = 50;
// The default group of queues, which redrives use.
const KEEPER = "queue";

const held = (totals) => [
  ["ready", totals.ready],
  ["in flight", totals.in_flight, "in-flight"],
  ["in backoff", totals.resting, "backoff"],
];

export function queues(view) {
  const list = h("div");
  show(view.main, heading("Queues"), h("p", { class: "key-line" }, badge("ready", "ready"), badge("in flight", "in-flight"), badge("in backoff, before a retry", "backoff")), list);
  view.live(
    list,
    (signal) => get("/reliability/stats", { limit: 1000 }, signal),
    ({ queues: found }) =>
      table(
        [
          { label: "Topic", kind: "name", cell: (row) => h("a", { href: toQueue(row.group, row.topic) }, row.topic) },
          { label: "Group", kind: "name", cell: (row) => h("a", { href: toGroup(row.group) }, row.group) },
          { label: "", kind: "wide", cell: (row) => bar(held(row.totals)) },
          { label: "Ready", kind: "number", cell: (row) => format.count(row.totals.ready) },
          { label: "In flight", kind: "number", cell: (row) => format.count(row.totals.in_flight) },
          { label: "In backoff", kind: "number wide", cell: (row) => format.count(row.totals.resting) },
          { label: "Acked", kind: "number wide", cell: (row) => format.count(row.totals.acked_total) },
          { label: "Dead letters", kind: "number", cell: (row) => format.count(row.totals.dead_lettered_total) },
        ],
        found,
        { key: (row) => `${row.group}/${row.topic}`, label: "Queues", isStacked: true, empty: "No queues yet. One appears when a group first receives from a topic." },
      ),
  );
  return "Queues";
}

export function queue(view, { group, topic }, query) {
  let seconds = windowOf(query);
  let isPeeking = false;
  const where = path`/groups/${group}/queues/${topic}`;
  const body = h("div", { class: "stack" });
  const purge = async () => {
    const isSure = await confirm(`Purge ${topic} for ${group}?`, "All messages that are ready or in flight are marked as processed for this group. They remain in the topic.", "Purge");
    if (!isSure) return;
    await send("POST", `${where}/purge`);
    toast("The queue was purged.");
    again();
  };
  const actions = [h("a", { class: "button", href: toMessages(topic) }, "Browse"), button("Purge", purge, { tone: "danger" })];
  show(
    view.main,
    trail(["Queues", "#/queues"], [group, toGroup(group)], [topic]),
    heading(topic, actions),
    body,
  );
  const load = async (signal) => {
    const [described, lanes, rates] = await Promise.all([
      get(where, {}, signal),
      get("/priority/stats", { group, topic }, signal),
      history({ group, topic }, seconds, signal),
    ]);
    const letters = described.dead_letter_topic;
    const [dead, peeked] = await Promise.all([
      letters ? countDeadLetters(letters, signal) : 0,
      isPeeking ? get(`${where}/messages`, { limit: PEEKED, decode: true }, signal, parseExactly) : null,
    ]);
    return { described, lanes: lanes.lanes, rates, letters, dead, peeked };
  };
  const draw = ({ described, lanes, rates, letters, dead, peeked }) => {
    const totals = described.totals;
    const change = (chosen) => {
      seconds = chosen;
      view.keep({ window: chosen });
      again();
    };
    const peek = (event) => {
      isPeeking = event.currentTarget.open;
      if (isPeeking) again();
    };
    return [
      stats(
        stat("Ready", format.brief(totals.ready)),
        stat("In flight", format.brief(totals.in_flight)),
        stat("In backoff", format.brief(totals.resting), { note: "before a retry" }),
        stat("Acknowledged", format.brief(totals.acked_total)),
        stat("Redelivered", format.brief(totals.redelivered_total), { note: `${format.brief(totals.expired_leases_total)} leases expired` }),
        stat("Dead letters", format.brief(dead), { href: dead ? toDeadLetters(letters) : null, tone: dead ? "bad" : null, note: letters }),
      ),
      card("Lanes", laneBars(lanes)),
      card(
        h("span", { class: "split" }, "Over time", choice("Window", WINDOWS, seconds, change)),
        chart({
          id: "queue",
          title: "Messages in the queue",
          times: rates.times,
          series: [
            { label: "ready", values: values(rates, "ready", { topic, group }), tone: "tone-1" },
            { label: "in flight", values: values(rates, "in_flight", { topic, group }), tone: "tone-2" },
          ],
        }),
      ),
      h(
        "details",
        { class: "card fold", on: { toggle: peek } },
        h("summary", null, "Peek at the next messages"),
        peeked ? messageList(topic, peeked.messages, { nothing: "No messages." }) : null,
      ),
      card("Partitions", partitions(described)),
    ];
  };
  const again = view.live(body, load, draw, { actions });
  return `${topic} for ${group}`;
}

function laneBars(lanes) {
  const total = (lane) => lane.ready + lane.in_flight + lane.resting;
  const found = LANES.filter((name) => lanes[name]);
  const largest = Math.max(...found.map((name) => total(lanes[name])), 1);
  return table(
    [
      { label: "Lane", cell: (name) => name },
      { label: "", kind: "grow", cell: (name) => bar(held(lanes[name]), largest) },
      { label: "Ready", kind: "number", cell: (name) => format.count(lanes[name].ready) },
      { label: "In flight", kind: "number", cell: (name) => format.count(lanes[name].in_flight) },
      { label: "Enqueued", kind: "number wide", cell: (name) => format.rate(lanes[name].enqueued_per_second) },
      { label: "Delivered", kind: "number wide", cell: (name) => format.rate(lanes[name].delivered_per_second) },
    ],
    found,
    { key: (name) => name, label: "Lanes", empty: "No messages yet." },
  );
}

function partitions({ topic, partitions: found }) {
  return table(
    [
      { label: "Partition", kind: "number", cell: (row) => h("a", { href: toMessages(topic, { partition: row.partition, by: "offset", at: row.start_offset }) }, row.partition) },
      { label: "Processed before", kind: "number wide", cell: (row) => format.count(row.start_offset) },
      { label: "End", kind: "number wide", cell: (row) => format.count(row.end_offset) },
      { label: "Ready", kind: "number", cell: (row) => format.count(row.ready) },
      { label: "In flight", kind: "number", cell: (row) => format.count(row.in_flight) },
      { label: "In backoff", kind: "number wide", cell: (row) => format.count(row.resting) },
    ],
    found,
    { key: (row) => String(row.partition), label: "Partitions" },
  );
}

/** Count unprocessed dead letters: redriven ones remain in their topic, but are marked as processed. */
async function countDeadLetters(topic, signal) {
  const [{ topics }, { queues: found }] = await Promise.all([
    get("/topics", { prefix: topic, limit: 1 }, signal),
    get("/reliability/stats", { topic, group: KEEPER }, signal),
  ]);
  if (found.length) return found[0].totals.ready + found[0].totals.in_flight + found[0].totals.resting;
  return topics.find(({ name }) => name === topic)?.messages ?? 0;
}

export function deadLetters(view, { topic }) {
  const body = h("div", { class: "stack" });
  const redrive = async () => {
    const started = await send("POST", path`/topics/${topic}/dead-letters/redrive`, {});
    toast(`${format.count(started.to_move)} dead letters are moved back to their topics.`);
    again();
  };
  const actions = [h("a", { class: "button", href: toTopic(topic) }, "Topic"), button("Redrive all", redrive, { tone: "primary" })];
  show(
    view.main,
    trail(["Queues", "#/queues"], ["Dead letters"]),
    heading(topic, actions),
    body,
  );
  const load = async (signal) => {
    const [{ redrives }, { queues: keepers }] = await Promise.all([
      get("/redrives", { topic }, signal),
      get("/reliability/stats", { topic, group: KEEPER }, signal),
    ]);
    const where = keepers.length ? path`/groups/${KEEPER}/queues/${topic}/messages` : path`/topics/${topic}/messages`;
    const [{ messages }, count] = await Promise.all([get(where, { limit: LETTERS, decode: true }, signal, parseExactly), countDeadLetters(topic, signal)]);
    return { letters: messages, count, redrives };
  };
  const draw = ({ letters, count, redrives }) => [
    redrives.length ? card("Redrives", redrives.slice(0, 5).map((task) => progress(task))) : null,
    card(`${format.count(count)} waiting`, messageList(topic, letters, { nothing: "No dead letters." })),
  ];
  const progress = (task) => {
    const cancel = async () => {
      await send("DELETE", path`/redrives/${task.id}`);
      again();
    };
    const tone = { completed: "good", failed: "bad", running: "live" }[task.state] ?? "";
    return h(
      "div",
      { class: "task", "data-key": task.id },
      h("span", { class: "split" }, h("span", null, badge(task.state, tone), ` ${format.count(task.moved)} of ${format.count(task.to_move)} moved to ${task.target ?? "their topics"}`), h("span", { class: "note" }, format.ago(task.started)), task.state === "running" ? button("Stop", cancel, { tone: "quiet" }) : null),
      h("progress", { max: Math.max(task.to_move, 1), value: task.to_move ? task.moved : 1, "aria-label": "Moved" }),
      task.failure ? h("p", { class: "refused" }, task.failure) : null,
    );
  };
  const again = view.live(body, load, draw, { actions });
  return `Dead letters of ${topic}`;
}
