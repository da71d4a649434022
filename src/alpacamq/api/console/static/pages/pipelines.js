// Data pipelines and their latest progress.

import { get } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toGroup } from "../links.js";
import { badge, empty, facts, heading } from "../parts.js";

const TONES = { running: "live", done: "good", stopped: "", failed: "bad" };

export function pipelines(view) {
  const list = h("div", { class: "cards" });
  show(view.main, heading("Pipelines"), list);
  view.live(
    list,
    (signal) => get("/pipelines", {}, signal),
    (found) =>
      found.pipelines.length
        ? found.pipelines.map(shown)
        : empty("No pipeline has reported yet. Start one with ", h("code", null, "alpacactl pipeline start FILE")),
  );
  return "Pipelines";
}

function shown(pipeline) {
  const isOver = pipeline.state !== "running";
  return h(
    "article",
    { class: "card pipeline", "data-key": pipeline.name },
    h("h2", { class: "split" }, h("span", null, pipeline.name), pipeline.silent ? badge("silent", "warn") : badge(pipeline.state, TONES[pipeline.state])),
    h("p", { class: "note" }, pipeline.kind),
    h("p", { class: "rows" }, h("b", null, format.count(pipeline.rows)), " rows", isOver ? null : h("span", { class: "note" }, ` at ${format.rate(pipeline.rows_per_second)}`)),
    facts([
      ["Lag", pipeline.lag === null ? "–" : h("a", { href: toGroup(`pipeline-${pipeline.name}`) }, format.count(pipeline.lag))],
      ["Batch", format.count(pipeline.batch)],
      pipeline.malformed ? ["Malformed values", format.count(pipeline.malformed)] : null,
      pipeline.failures ? ["Failed runs", format.count(pipeline.failures)] : null,
      pipeline.batch_at ? ["Last batch", format.ago(pipeline.batch_at)] : null,
      ["Started", format.ago(pipeline.started)],
      [isOver ? "Ended" : "Last report", format.ago(pipeline.updated)],
      isOver ? ["Duration", format.span(pipeline.updated - pipeline.started)] : null,
    ]),
    pipeline.silent ? h("p", { class: "refused" }, "No report for over a minute: the pipeline may have been killed.") : null,
    pipeline.error ? h("p", { class: "refused" }, pipeline.error) : null,
  );
}
