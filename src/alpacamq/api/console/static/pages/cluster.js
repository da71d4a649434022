// The cluster: nodes, controller, replicas of partitions, reassignments and links.

import { get } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toTopic } from "../links.js";
import { badge, bar, card, choice, heading, stat, stats, table } from "../parts.js";

// Partitions in the picture and in the table.
const SHOWN = 1000;
const TONES = { running: "good", draining: "warn", drained: "warn", stopping: "warn", fenced: "bad" };
const LINK_TONES = { connected: "good", idle: "", connecting: "warn", backoff: "bad", closed: "bad" };
const FILTERS = [
  ["", "All"],
  ["under-replicated", "Under-replicated"],
  ["offline", "Offline"],
  ["reassigning", "Reassigning"],
];

export function cluster(view) {
  let state = "";
  const health = h("span");
  const body = h("div", { class: "stack" });
  show(view.main, heading("Cluster", health), body);
  view.unknownWhenUnreachable(health);

  const load = async (signal) => {
    const [status, placed] = await Promise.all([
      get("/cluster/status", {}, signal),
      get("/cluster/partitions", { limit: SHOWN, state }, signal),
    ]);
    return { status, placed };
  };

  const draw = ({ status, placed }) => {
    const { partitions, controller, nodes } = status;
    const running = nodes.filter((node) => !node.fenced);
    const isWell = running.length === nodes.length && controller.node_id !== null && !partitions.offline && !partitions.under_replicated;
    show(health, badge(isWell ? "healthy" : "degraded", isWell ? "good" : "warn"), h("span", { class: "note" }, `reported by node ${status.node_id}`));
    const lag = Math.max(0, ...nodes.map((node) => node.lag_ms ?? 0));
    const change = (chosen) => {
      state = chosen;
      again();
    };
    return [
      status.warnings.map((text) => h("p", { class: "refused", role: "alert" }, text)),
      stats(
        stat("Controller", controller.node_id === null ? "none" : `node ${controller.node_id}`, { note: `term ${controller.term}`, tone: controller.node_id === null ? "bad" : null }),
        stat("Nodes", `${running.length} of ${nodes.length}`, { note: "running", tone: running.length < nodes.length ? "warn" : null }),
        stat("Under-replicated", format.count(partitions.under_replicated), { note: `of ${format.count(partitions.partitions)} partitions`, tone: partitions.under_replicated ? "warn" : null }),
        stat("Below min ISR", format.count(partitions.below_min_isr), { tone: partitions.below_min_isr ? "bad" : null }),
        stat("Offline", format.count(partitions.offline), { note: "without a leader", tone: partitions.offline ? "bad" : null }),
        stat("Follower lag", format.span(lag), { note: "maximum" }),
      ),
      card("Nodes", nodeTable(status)),
      status.reassignments.length ? card("Reassignments", moves(status.reassignments)) : null,
      card(
        h("span", { class: "split" }, "Replicas", choice("Partitions", FILTERS, state, change)),
        picture(nodes, placed.partitions),
        legend(),
        placed.total > placed.partitions.length ? h("p", { class: "note" }, `The first ${format.count(placed.partitions.length)} of ${format.count(placed.total)} partitions.`) : null,
      ),
      card("Partitions", partitionTable(placed.partitions)),
      status.links.length ? card(`Links of node ${status.node_id}`, links(status.links)) : null,
    ];
  };
  const again = view.live(body, load, draw);
  return "Cluster";
}

function nodeTable(status) {
  const voters = new Map(status.voters.map((voter) => [voter.node_id, voter]));
  const vote = (node) => {
    const voter = voters.get(node.node_id);
    if (!voter) return "–";
    return voter.lag ? `${format.count(voter.lag)} behind` : "yes";
  };
  return table(
    [
      { label: "Node", kind: "name", cell: (row) => ["node ", row.node_id, row.controller ? [" ", badge("controller", "live")] : null] },
      { label: "State", cell: (row) => badge(row.error ? "no answer" : row.state, row.error ? "bad" : (TONES[row.state] ?? "")) },
      { label: "Address", kind: "wide", cell: (row) => row.addresses.kafka ?? "–" },
      { label: "Rack", kind: "wide", cell: (row) => row.rack || "–" },
      { label: "Version", kind: "wide", cell: (row) => row.version },
      { label: "Voter", cell: vote },
      { label: "Leaders", kind: "number", cell: (row) => format.count(row.leaders) },
      { label: "Replicas", kind: "number", cell: (row) => format.count(row.replicas) },
      { label: "In sync", cell: (row) => bar([["in sync", row.in_sync, "tone-1"], ["behind", row.replicas - row.in_sync, "tone-3"]]) },
      { label: "Lag", kind: "number", cell: (row) => format.count(row.lag_messages) },
      { label: "Behind", kind: "number", cell: (row) => format.span(row.lag_ms) },
    ],
    status.nodes,
    { key: (row) => `node ${row.node_id}`, label: "Nodes", isStacked: true },
  );
}

function moves(reassignments) {
  const progress = (row) =>
    row.progress === null
      ? "–"
      : [h("progress", { max: 1, value: row.progress, "aria-label": `Progress of ${row.topic} ${row.partition}` }), h("span", { class: "note" }, ` ${Math.floor(100 * row.progress)} %`)];
  return table(
    [
      { label: "Topic", kind: "name", cell: (row) => h("a", { href: toTopic(row.topic) }, row.topic) },
      { label: "Partition", kind: "number", cell: (row) => row.partition },
      { label: "To", cell: (row) => row.replicas.join(", ") },
      { label: "Adding", cell: (row) => row.adding.join(", ") || "–" },
      { label: "Removing", kind: "wide", cell: (row) => row.removing.join(", ") || "–" },
      { label: "Progress", cell: progress },
      { label: "Behind", kind: "number", cell: (row) => format.count(row.behind) },
      { label: "Left", kind: "number", cell: (row) => format.bytes(row.bytes_left) },
      { label: "Throttle", kind: "wide", cell: (row) => (row.throttle === null ? "–" : `${format.bytes(row.throttle)}/s`) },
    ],
    reassignments,
    { key: (row) => `${row.topic}/${row.partition}`, label: "Reassignments", isStacked: true },
  );
}

/** A box for each node, and in it a square for each replica. */
function picture(nodes, partitions) {
  return h(
    "div",
    { class: "nodes" },
    nodes.map((node) => {
      const here = partitions.filter((each) => each.replicas.includes(node.node_id));
      const led = here.filter((each) => each.leader === node.node_id).length;
      const text = `node ${node.node_id}: ${led} leaders, ${here.length} replicas`;
      return h(
        "figure",
        { class: `node ${node.fenced ? "fenced" : ""}`, "data-key": `box ${node.node_id}` },
        h("figcaption", null, `node ${node.node_id}`),
        h(
          "div",
          { class: "replicas", role: "img", "aria-label": text },
          here.map((each) => h("span", { class: `replica ${role(each, node.node_id)}`, title: `${each.topic} ${each.partition}: ${role(each, node.node_id)}` })),
        ),
      );
    }),
  );
}

function role(partition, node) {
  if (partition.leader === node) return "leader";
  if (partition.adding.includes(node)) return "added";
  return partition.in_sync.includes(node) ? "follower" : "behind";
}

function legend() {
  const kinds = [
    ["leader", "leader"],
    ["follower", "in sync"],
    ["behind", "not in sync"],
    ["added", "being added"],
  ];
  return h("p", { class: "chips" }, kinds.map(([kind, text]) => h("span", { class: "legend" }, h("span", { class: `replica ${kind}` }), text)));
}

function partitionTable(partitions) {
  return table(
    [
      { label: "Topic", kind: "name", cell: (row) => h("a", { href: toTopic(row.topic) }, row.topic) },
      { label: "Partition", kind: "number", cell: (row) => row.partition },
      { label: "Leader", kind: "number", cell: (row) => row.leader ?? "none" },
      { label: "Replicas", kind: "wide", cell: (row) => row.replicas.join(", ") },
      { label: "In sync", cell: (row) => row.in_sync.join(", ") || "–" },
      { label: "", kind: "wide", cell: (row) => row.states.map((each) => [badge(each, each === "offline" || each === "below-min-isr" ? "bad" : "warn"), " "]) },
    ],
    partitions.slice(0, 200),
    { key: (row) => `${row.topic}/${row.partition}`, label: "Partitions", empty: "No partition is in this state." },
  );
}

function links(all) {
  return table(
    [
      { label: "Node", kind: "name", cell: (row) => `node ${row.node_id}` },
      { label: "Address", cell: (row) => row.address },
      { label: "State", cell: (row) => badge(row.state, LINK_TONES[row.state] ?? "") },
      { label: "Last error", kind: "wide", cell: (row) => row.last_error || "–" },
    ],
    all,
    { key: (row) => `link ${row.node_id}`, label: "Links", isStacked: true },
  );
}
