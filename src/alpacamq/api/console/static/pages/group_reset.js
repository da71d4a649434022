// Resets the offsets of a group: shows what would change first, and then applies exactly that.

import { get, path, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toGroup } from "../links.js";
import { card, confirm, empty, field, form, heading, refused, select, table, toast, trail } from "../parts.js";

const WAYS = [
  ["earliest", "the beginning"],
  ["latest", "the end"],
  ["timestamp", "a timestamp"],
  ["offset", "an offset"],
];
// Of one request.
const MAX_RESETS = 1000;

/** Whether a group commits offsets: share groups and queues have state of their own. */
export const hasOffsets = ({ type }) => ["classic", "consumer", "streams"].includes(type);

export function groupReset(view, { group: name }) {
  const body = h("div", { class: "stack", "aria-busy": "true" });
  show(view.main, trail(["Groups", "#/groups"], [name, toGroup(name)], ["Reset offsets"]), heading(`Reset ${name}`), body);
  load(name, view.signal)
    .then((found) => show(body, found ? sections(name, found) : empty("This group has no offsets to reset.")))
    .catch((error) => view.signal.aborted || show(body, refused(error)))
    .finally(() => body.removeAttribute("aria-busy"));
  return `Reset ${name}`;
}

async function load(name, signal) {
  const described = await get(path`/groups/${name}`, {}, signal);
  if (!hasOffsets(described)) return null;
  const [{ offsets }, { topics }] = await Promise.all([
    get(path`/groups/${name}/offsets`, {}, signal),
    get("/topics", { limit: 1000 }, signal),
  ]);
  return { described, offsets, topics };
}

function sections(name, { described, offsets, topics }) {
  const committed = new Map(offsets.map((each) => [`${each.topic}/${each.partition}`, each.offset]));
  const own = [...new Set(offsets.map((each) => each.topic))];
  const known = h("datalist", { id: "reset-topics" }, topics.map((each) => h("option", { value: each.name })));
  const topic = h("input", { required: true, value: own[0] ?? "", list: "reset-topics", autocomplete: "off", spellcheck: "false" });
  const partition = h("input", { type: "number", min: 0, placeholder: "all", inputmode: "numeric" });
  const at = h("input", { autocomplete: "off" });
  const atField = field("Position", at);
  const result = h("div");
  const fit = (way) => {
    atField.hidden = at.disabled = way === "earliest" || way === "latest";
    at.type = way === "timestamp" ? "datetime-local" : "number";
    at.required = !at.disabled;
    if (way === "timestamp") at.step = "1";
    else at.removeAttribute("step");
    atField.querySelector("label").textContent = way === "timestamp" ? "Timestamp" : "Offset";
  };
  const to = select(WAYS, "earliest", fit);
  fit("earliest");
  const preview = async () => {
    show(result);
    const reset = { topic: topic.value };
    if (partition.value !== "") reset.partition = Number(partition.value);
    if (to.value === "timestamp") reset.timestamp = new Date(at.value).getTime();
    else if (to.value === "offset") reset.offset = Number(at.value);
    else reset.to = to.value;
    const { offsets: planned } = await send("POST", path`/groups/${name}/offsets`, { reset: [reset], dry_run: true });
    show(result, plan(name, described, planned.map((each) => ({ ...each, before: committed.get(`${each.topic}/${each.partition}`) ?? null }))));
  };
  const drop = () => show(result); // the plan is that of other fields
  for (const each of [topic, partition, to, at]) each.addEventListener("input", drop);
  return [
    card(null, form("Preview", preview, h("div", { class: "columns" }, field("Topic", topic), field("Partition", partition)), known, h("div", { class: "columns" }, field("To", to), atField))),
    result,
  ];
}

function plan(name, described, planned) {
  const move = ({ before, offset }) => (before === null ? "–" : `${offset > before ? "+" : ""}${format.count(offset - before)}`);
  const apply = async () => {
    const again = planned.reduce((sum, { before, offset }) => sum + Math.max((before ?? offset) - offset, 0), 0);
    const skipped = planned.reduce((sum, { before, offset }) => sum + Math.max(offset - (before ?? offset), 0), 0);
    const detail = `${format.count(again)} messages are delivered again, and ${format.count(skipped)} are skipped.`;
    if (!(await confirm(`Reset ${name}?`, detail, "Reset offsets"))) return;
    try {
      for (let from = 0; from < planned.length; from += MAX_RESETS) {
        const reset = planned.slice(from, from + MAX_RESETS).map(({ topic, partition, offset }) => ({ topic, partition, offset }));
        await send("POST", path`/groups/${name}/offsets`, { reset });
      }
      toast(`The offsets of ${name} are reset.`);
      location.hash = toGroup(name);
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  const isBusy = described.members.length > 0;
  const members = described.members.map((each) => each.client_id || each.member_id).join(", ");
  return card(
    "Preview",
    planned.length
      ? table(
          [
            { label: "Topic", kind: "name wide", cell: (row) => row.topic },
            { label: "Partition", kind: "number", cell: (row) => row.partition },
            { label: "Committed", kind: "number", cell: (row) => format.count(row.before) },
            { label: "New", kind: "number", cell: (row) => format.count(row.offset) },
            { label: "Change", kind: "number", cell: move },
          ],
          planned,
          { key: (row) => `${row.topic}/${row.partition}`, label: "Preview" },
        )
      : empty("Nothing to reset."),
    isBusy ? h("p", { class: "refused" }, `The group has members (${members}). Stop them first: they would overwrite the new offsets.`) : null,
    h("div", { class: "actions below" }, h("button", { type: "button", class: "danger", disabled: isBusy || !planned.length, on: { click: apply } }, "Reset offsets")),
  );
}
