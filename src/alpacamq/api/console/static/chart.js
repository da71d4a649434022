// Time series as SVG lines, with a legend of the latest values and a readout at the pointer.

import { h, show } from "./dom.js";
import * as format from "./format.js";

const WIDTH = 1000;
const HEIGHT = 100;
// Pointer positions by chart, as a share of the width; kept across redraws.
const pointed = new Map();

/**
 * Draw a chart. `series` is [{label, values, tone}] over `times`; `id` identifies the chart on its page.
 * Values are numbers, or null if unknown.
 */
export function chart({ id, times, series, unit = format.brief, title }) {
  const drawn = series.filter((each) => each.values.some((value) => value !== null));
  if (times.length < 2 || !drawn.length) {
    return h("div", { class: "chart" }, h("p", { class: "empty" }, "Collecting… the first points appear within seconds."));
  }
  const top = ceiling(Math.max(...drawn.flatMap((each) => each.values.map((value) => value ?? 0))));
  const reading = h("div", { class: "reading", "aria-hidden": "true" }, at(id, times, drawn, unit, top));
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pointed.set(id, Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
    show(event.currentTarget.querySelector(".reading"), at(id, times, drawn, unit, top));
  };
  const leave = (event) => {
    pointed.delete(id);
    show(event.currentTarget.querySelector(".reading"));
  };
  return h(
    "figure",
    { class: "chart", "data-key": id },
    h("figcaption", null, drawn.map((each) => legend(each, unit))),
    h(
      "div",
      { class: "plot", role: "img", "aria-label": summary(title, drawn, unit), on: { pointermove: move, pointerleave: leave } },
      [1, 0.5, 0].map((share) =>
        h("span", { class: "grid", style: { bottom: `${100 * share}%` } }, h("span", null, unit(top * share))),
      ),
      h(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        drawn.length === 1 ? h("path", { class: `area ${drawn[0].tone}`, d: area(times, drawn[0].values, top) }) : null,
        drawn.map((each) => h("path", { class: `line ${each.tone}`, d: line(times, each.values, top) })),
      ),
      reading,
    ),
    h("div", { class: "axis", "aria-hidden": "true" }, [0, 0.5, 1].map((share) => h("span", null, format.clock(between(times, share))))),
  );
}

/** A line without labels, for a table row. */
export function sparkline(values, tone = "tone-1") {
  const known = values.map((value) => value ?? 0);
  const top = Math.max(...known, 1e-9);
  const times = known.map((_, place) => place);
  return h(
    "svg",
    { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    known.length > 1
      ? [h("path", { class: `area ${tone}`, d: area(times, known, top) }), h("path", { class: `line ${tone}`, d: line(times, known, top) })]
      : null,
  );
}

function legend(series, unit) {
  return h("span", { class: `legend ${series.tone}` }, h("i"), series.label, h("b", null, unit(last(series.values))));
}

function summary(title, drawn, unit) {
  return `${title}: ${drawn.map((each) => `${each.label} ${unit(last(each.values))}`).join(", ")}`;
}

const last = (values) => values.findLast((value) => value !== null) ?? null;
const between = (times, share) => times[0] + (times.at(-1) - times[0]) * share;

/** Round up to a number with a short label for the scale. */
function ceiling(highest) {
  if (highest <= 0) return 1;
  const magnitude = 10 ** Math.floor(Math.log10(highest));
  return magnitude * [1, 2, 4, 5, 6, 8, 10].find((step) => step * magnitude >= highest);
}

function points(times, values, top) {
  const span = times.at(-1) - times[0] || 1;
  return values.map((value, place) =>
    value === null
      ? null
      : [(((times[place] - times[0]) / span) * WIDTH).toFixed(1), (HEIGHT - (value / top) * (HEIGHT - 2) - 1).toFixed(2)],
  );
}

function line(times, values, top) {
  let path = "";
  let isDown = false;
  for (const point of points(times, values, top)) {
    if (point) path += `${isDown ? "L" : "M"}${point[0]} ${point[1]}`;
    isDown = point !== null;
  }
  return path;
}

function area(times, values, top) {
  const known = points(times, values, top).filter(Boolean);
  if (!known.length) return "";
  return `M${known[0][0]} ${HEIGHT}${known.map(([x, y]) => `L${x} ${y}`).join("")}L${known.at(-1)[0]} ${HEIGHT}Z`;
}

function at(id, times, drawn, unit, top) {
  const share = pointed.get(id);
  if (share === undefined) return null;
  const wanted = between(times, share);
  const place = times.reduce((best, time, index) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? index : best), 0);
  const left = ((times[place] - times[0]) / (times.at(-1) - times[0] || 1)) * 100;
  return [
    h("span", { class: "hair", style: { left: `${left}%` } }),
    drawn.map((each) =>
      each.values[place] === null
        ? null
        : h("i", { class: `dot ${each.tone}`, style: { left: `${left}%`, bottom: `${(each.values[place] / top) * 100}%` } }),
    ),
    h(
      "div",
      { class: `tip ${left > 50 ? "before" : ""}`, style: { left: `${left}%` } },
      h("time", null, format.clock(times[place])),
      drawn.map((each) => h("span", { class: `legend ${each.tone}` }, h("i"), each.label, h("b", null, unit(each.values[place])))),
    ),
  ];
}
