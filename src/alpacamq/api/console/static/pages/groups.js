// The list of groups, and one group with its members, offsets and lag over time.

import { get, path } from "../api.js";
import { chart } from "../chart.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { history, latest, omitted, toned, windowOf, WINDOWS } from "../history.js";
import { toGroup, toGroupReset, toQueue, toTopic } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { badge, bar, card, choice, heading, stat, stats, table, trail } from "../parts.js";
import { hasOffsets } from "./group_reset.js";

const TONES = { stable: "good", empty: "", dead: "bad" };

export function groups(view, _, query) {
  let found = null;
  const list = h("div");
  const { filter, shown, every } = listing(view, query, "Filter groups by name", () => found && show(list, draw(found)));
  show(view.main, heading("Groups"), h("div", { class: "tools" }, filter), list);
  const load = async (signal) => {
    const [{ groups: listed, next }, lags] = await Promise.all([
      get("/groups", { limit: LIMIT }, signal),
      history({ measure: "lag" }, 60, signal, 10),
    ]);
    return { listed, next, lags };
  };
  const draw = (answer) => {
    found = answer;
    const { listed, next, lags } = answer;
    const { rows, pager, isFiltered } = shown(listed, (row) => row.group);
    return [
      table(
        [
          { label: "Group", kind: "name", cell: (row) => h("a", { href: toGroup(row.group) }, row.group) },
          { label: "Type", cell: (row) => row.type },
          { label: "State", cell: (row) => (row.state ? badge(row.state, TONES[row.state.toLowerCase()] ?? "warn") : "–") },
          { label: "Topics", kind: "wide", cell: (row) => topicsOf(row, lags).join(", ") || "–" },
          { label: "Lag", kind: "number", cell: (row) => format.count(lagOf(row.group, lags)) },
        ],
        rows,
        { key: (row) => `${row.group}/${row.type}`, label: "Groups", empty: isFiltered ? "No group matches." : "No groups yet. One appears when a consumer joins, commits or receives." },
      ),
      pager,
      next ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} are listed.`) : null,
      omitted(lags, "groups"),
    ];
  };
  view.live(list, load, draw, { every });
  return "Groups";
}

function topicsOf(row, lags) {
  return row.topics ?? lags.series.filter((each) => each.group === row.group).map((each) => each.topic);
}

function lagOf(group, lags) {
  const known = lags.series.filter((each) => each.group === group).map((each) => latest(each.values));
  return known.length ? known.reduce((total, lag) => total + (lag ?? 0), 0) : null;
}

export function group(view, { group: name }, query) {
  let seconds = windowOf(query);
  const body = h("div", { class: "stack" });
  const reset = h("a", { class: "button", href: toGroupReset(name), hidden: true }, "Reset offsets");
  show(view.main, trail(["Groups", "#/groups"], [name]), heading(name, reset), body);
  const load = async (signal) => {
    const [described, lags] = await Promise.all([
      get(path`/groups/${name}`, {}, signal),
      history({ group: name, measure: "lag" }, seconds, signal),
    ]);
    // Only a queue: it has no offsets to show.
    const offsets = described.type === "queue" ? null : await get(path`/groups/${name}/offsets`, {}, signal);
    return { described, offsets, lags };
  };
  const draw = ({ described, offsets, lags }) => {
    const places = offsets?.offsets ?? [];
    reset.hidden = !hasOffsets(described);
    const series = lags.series.map((each) => ({ label: each.topic, values: each.values }));
    const now = series.map((each) => latest(each.values)).filter((lag) => lag !== null);
    const change = (chosen) => {
      seconds = chosen;
      view.keep({ window: chosen });
      again();
    };
    return [
      stats(
        stat("Lag", format.brief(now.length ? now.reduce((sum, lag) => sum + lag, 0) : offsets?.total_lag ?? null)),
        stat("Members", format.count(described.members.length)),
        stat("State", described.state ?? "–"),
        stat("Type", described.type, { note: described.assignor ?? null }),
      ),
      card(
        h("span", { class: "split" }, "Lag over time", choice("Window", WINDOWS, seconds, change)),
        chart({ id: "lag", title: "Lag over time", times: lags.times, series: toned(series) }),
        omitted(lags, "groups"),
      ),
      described.queues.length
        ? card("As a queue", h("p", { class: "chips" }, described.queues.map((topic) => h("a", { href: toQueue(name, topic) }, topic))))
        : null,
      card("Members", members(described)),
      card("Offsets", offsetTable(places)),
    ];
  };
  const again = view.live(body, load, draw);
  return name;
}

function members(described) {
  const assigned = (row) => Object.entries(row.assignment ?? {}).map(([topic, parts]) => `${topic} ${parts.join(", ")}`);
  return table(
    [
      { label: "Member", kind: "name", cell: (row) => row.client_id || row.member_id },
      { label: "Host", cell: (row) => row.client_host },
      { label: "Partitions", cell: (row) => assigned(row).join("; ") || "–" },
      { label: "Epoch", kind: "number wide", cell: (row) => format.count(row.member_epoch) },
      { label: "Id", kind: "wide", cell: (row) => h("code", null, row.member_id) },
    ],
    described.members,
    { key: (row) => row.member_id, label: "Members", empty: "No members." },
  );
}

function offsetTable(places) {
  const largest = Math.max(...places.map((row) => row.lag ?? 0), 1);
  return table(
    [
      { label: "Topic", kind: "name", cell: (row) => h("a", { href: toTopic(row.topic) }, row.topic) },
      { label: "Partition", kind: "number", cell: (row) => row.partition },
      { label: "Committed", kind: "number", cell: (row) => format.count(row.offset) },
      { label: "End", kind: "number wide", cell: (row) => format.count(row.end_offset) },
      { label: "Lag", kind: "number", cell: (row) => format.count(row.lag) },
      { label: "", kind: "wide", cell: (row) => bar([["lag", row.lag ?? 0, "tone-3"]], largest) },
    ],
    places,
    { key: (row) => `${row.topic}/${row.partition}`, label: "Offsets", empty: "No committed offsets." },
  );
}
