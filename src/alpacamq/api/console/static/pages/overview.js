// Overview of the broker: health, rates and totals.

import { get, Problem } from "../api.js";
import { chart, sparkline } from "../chart.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { history, latest, omitted, values, windowOf, WINDOWS } from "../history.js";
import { toTopic } from "../links.js";
import { badge, card, choice, heading, stat, stats, table } from "../parts.js";

const TOPICS_SHOWN = 8;

export function overview(view, _, query) {
  let seconds = windowOf(query);
  const health = h("span");
  const body = h("div", { class: "stack" });
  show(view.main, heading("Overview", health), body);
  view.unknownWhenUnreachable(health);

  const load = async (signal) => {
    const [totals, well, rates, byTopic, consumed, delays] = await Promise.all([
      get("/stats", {}, signal),
      checked(signal),
      history({}, seconds, signal),
      history({ measure: "published" }, seconds, signal, 40),
      history({ measure: "consumed" }, seconds, signal, 40),
      get("/delay/stats", {}, signal),
    ]);
    return { totals, well, rates, byTopic, consumed, delays };
  };

  const draw = ({ totals, well, rates, byTopic, consumed, delays }) => {
    show(health, badge(well.isWell ? "healthy" : "degraded", well.isWell ? "good" : well.isDegraded ? "warn" : "bad"), h("span", { class: "note" }, `version ${totals.version}, up ${format.span(totals.uptime_ms)}`));
    const published = values(rates, "published");
    const taken = values(rates, "consumed");
    const lag = values(rates, "lag");
    const change = (chosen) => {
      seconds = chosen;
      view.keep({ window: chosen });
      again();
    };
    return [
      well.isWell ? null : h("p", { class: "refused", role: "alert" }, well.detail),
      stats(
        stat("Published", format.rate(latest(published)), { chart: sparkline(published, "tone-1") }),
        stat("Consumed", format.rate(latest(taken)), { chart: sparkline(taken, "tone-2") }),
        stat("Waiting", format.brief(latest(lag)), { note: "not yet processed by groups", chart: sparkline(lag, "tone-3") }),
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
            { label: "consumed", values: taken, tone: "tone-2" },
          ],
        }),
      ),
      stats(
        stat("Topics", format.brief(totals.topics), { href: "#/topics", note: `${format.brief(totals.partitions)} partitions` }),
        stat("Messages", format.brief(totals.messages), { href: "#/topics", note: format.bytes(totals.size_bytes) }),
        stat("Groups", format.brief(totals.groups), { href: "#/groups" }),
        stat("Queues", format.brief(totals.queues), { href: "#/queues" }),
        stat("Delayed", format.brief(delays.pending), {
          href: "#/delayed",
          note: delays.next_deliver_at ? `next in ${format.span(Math.max(delays.next_deliver_at - Date.now(), 0))}` : null,
        }),
        stat("Transactions", format.brief(totals.open_transactions), { note: "open" }),
      ),
      card("Busiest topics", busiest(byTopic, consumed), omitted(byTopic, "topics")),
    ];
  };
  const again = view.live(body, load, draw);
  return "Overview";
}

async function checked(signal) {
  try {
    const { status, checks } = await get("/healthz", {}, signal);
    const troubles = Object.values(checks).filter((check) => check.status !== "ok");
    return { isWell: status === "ok", isDegraded: true, detail: troubles.map((check) => check.detail).join("; ") };
  } catch (error) {
    if (error instanceof Problem) return { isWell: false, detail: error.message };
    throw error;
  }
}

function busiest(published, consumed) {
  const sum = (numbers) => numbers.reduce((total, value) => total + (value ?? 0), 0);
  const rows = published.series
    .map((each) => ({ ...each, consumed: values(consumed, "consumed", { topic: each.topic }), total: sum(each.values) }))
    .sort((one, other) => other.total - one.total || one.topic.localeCompare(other.topic))
    .slice(0, TOPICS_SHOWN);
  return table(
    [
      { label: "Topic", kind: "name", cell: (row) => h("a", { href: toTopic(row.topic) }, row.topic) },
      { label: "Published", kind: "number", cell: (row) => format.rate(latest(row.values)) },
      { label: "", kind: "wide", cell: (row) => sparkline(row.values, "tone-1") },
      { label: "Consumed", kind: "number", cell: (row) => format.rate(latest(row.consumed)) },
      { label: "", kind: "wide", cell: (row) => sparkline(row.consumed, "tone-2") },
    ],
    rows,
    { key: (row) => row.topic, label: "Busiest topics", empty: ["No topics yet. ", h("a", { href: "#/produce" }, "Publish a message"), " to create one."] },
  );
}
