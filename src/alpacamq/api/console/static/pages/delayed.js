// Delayed messages by topic; each can be cancelled.

import { get, path, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toDelayed, toProduce, toTopic } from "../links.js";
import { button, card, confirm, empty, heading, stat, stats, table, toast, trail } from "../parts.js";

const LIMIT = 200;

export function delayed(view, _, query) {
  const chosen = query.get("topic");
  const body = h("div", { class: "stack" });
  const actions = [h("a", { class: "button", href: toProduce(chosen ?? "") }, "Produce")];
  show(view.main, chosen ? trail(["Delayed", "#/delayed"], [chosen]) : null, heading(chosen ? "Delayed messages" : "Delayed", actions), body);
  const load = async (signal) => {
    const [totals, { topics }, listed] = await Promise.all([
      get("/delay/stats", {}, signal),
      get("/delay/topics", {}, signal),
      chosen ? get(path`/topics/${chosen}/delayed`, { limit: LIMIT }, signal) : null,
    ]);
    return { totals, topics, listed };
  };
  const draw = ({ totals, topics, listed }) => [
    stats(
      stat("Waiting", format.brief(totals.pending)),
      stat("Next in", totals.next_deliver_at ? format.span(Math.max(totals.next_deliver_at - Date.now(), 0)) : "–"),
      stat("Delivered", format.brief(totals.delivered_total), { note: totals.delivered_total ? `99 % within ${format.span(totals.late_ms_p99)} of their time` : null }),
      stat("Cancelled", format.brief(totals.cancelled_total)),
    ),
    listed ? messageTable(listed) : byTopic(topics),
  ];
  const messageTable = ({ messages, next }) =>
    card(
      null,
      table(
        [
          { label: "Due in", kind: "number", cell: (row) => format.span(Math.max(row.deliver_at - Date.now(), 0)) },
          { label: "Due at", kind: "wide", cell: (row) => format.timestamp(row.deliver_at) },
          { label: "Partition", kind: "number wide", cell: (row) => row.partition },
          { label: "Id", kind: "number wide", cell: (row) => row.id },
          { label: "Size", kind: "number", cell: (row) => format.bytes(row.size_bytes) },
          { label: "Since", kind: "wide", cell: (row) => format.ago(row.scheduled) },
          { label: "", cell: (row) => button("Cancel", () => cancel(row), { tone: "quiet", title: `Cancel message ${row.id}` }) },
        ],
        messages.toSorted((one, other) => one.deliver_at - other.deliver_at),
        { key: (row) => `${row.partition}/${row.id}`, label: "Delayed messages", empty: "No delayed messages in this topic." },
      ),
      next ? h("p", { class: "note" }, `${LIMIT} of them are shown.`) : null,
    );
  const cancel = async (row) => {
    const isSure = await confirm("Cancel this message?", `It is due at ${format.timestamp(row.deliver_at)} and will not be delivered.`, "Cancel it");
    if (!isSure) return;
    await send("DELETE", path`/topics/${row.topic}/delayed/${row.partition}/${row.id}`);
    toast("The message is cancelled.");
    again();
  };
  const again = view.live(body, load, draw, { actions });
  return "Delayed";
}

function byTopic(topics) {
  if (!topics.length) return empty("No delayed messages.");
  return card(
    "By topic",
    table(
      [
        { label: "Topic", kind: "name", cell: (row) => h("a", { href: toDelayed(row.topic) }, row.topic) },
        { label: "Waiting", kind: "number", cell: (row) => format.count(row.pending) },
        { label: "Next", kind: "number", cell: (row) => (row.next_deliver_at ? `in ${format.span(Math.max(row.next_deliver_at - Date.now(), 0))}` : "–") },
        { label: "", kind: "wide", cell: (row) => h("a", { href: toTopic(row.topic) }, "topic") },
      ],
      topics,
      { key: (row) => row.topic, label: "Topics with delayed messages" },
    ),
  );
}
