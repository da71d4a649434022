// Rates and lag over time, from the history of the broker.

import { get } from "./api.js";
import { h } from "./dom.js";
import * as format from "./format.js";

export const WINDOWS = [
  [300, "5 min"],
  [900, "15 min"],
  [3600, "1 h"],
];
const TONES = 6;
const WINDOW_S = 900;

/** The window that the address of a page has. */
export function windowOf(query) {
  const wanted = Number(query.get("window"));
  return WINDOWS.some(([seconds]) => seconds === wanted) ? wanted : WINDOW_S;
}

/** Load the series of the last `seconds`; `wanted` holds query parameters. */
export async function history(wanted, seconds, signal, points = 150) {
  const after = Date.now() - seconds * 1000;
  return get("/history", { ...wanted, after: Math.max(Math.round(after), 0), points }, signal);
}

export function values(found, measure, { topic, group } = {}) {
  const match = (each) => each.measure === measure && each.topic === topic && each.group === group;
  return found.series.find(match)?.values ?? [];
}

/** Say that the broker does not keep all of the series; `what` names what they are of. */
export function omitted(found, what) {
  return found.omitted ? h("p", { class: "note" }, `The broker keeps a history of the busiest ${what} only: ${format.count(found.omitted)} more have none.`) : null;
}

export const latest = (values) => values.findLast((value) => value !== null) ?? null;

/** Assign a colour to each series, the largest first; series beyond the number of colours are left out. */
export function toned(series) {
  const largest = (each) => Math.max(...each.values.map((value) => value ?? 0));
  return [...series]
    .sort((one, other) => largest(other) - largest(one))
    .slice(0, TONES)
    .map((each, place) => ({ ...each, tone: `tone-${place + 1}` }));
}
