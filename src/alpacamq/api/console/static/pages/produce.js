// A form for publishing a message.

import { get, path, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toDelayed, toMessages } from "../links.js";
import { card, choice, field, heading, pairs, select } from "../parts.js";

const LANES = ["critical", "high", "normal", "low", "background"];
const FORMS = [
  ["text", "Text"],
  ["json", "JSON"],
  ["base64", "Base64"],
];

export function produce(view, _, query) {
  const topic = h("input", { required: true, list: "topics", value: query.get("topic") ?? "", autocomplete: "off", pattern: "[a-zA-Z0-9._\\-]+", maxlength: 249, spellcheck: "false" });
  const known = h("datalist", { id: "topics" });
  const key = h("input", { autocomplete: "off", spellcheck: "false" });
  const value = h("textarea", { rows: 8, spellcheck: "false" });
  const forms = h("div");
  const headers = pairs("Headers", "header");
  const partition = h("input", { type: "number", min: 0, placeholder: "by key", inputmode: "numeric" });
  const lane = select([["", "default"], ...LANES.map((name) => [name, name])], "");
  const delay = h("input", { type: "number", min: 0, step: "any", placeholder: "none", inputmode: "decimal" });
  const unit = select([["1", "ms"], ["1000", "s"], ["60000", "min"], ["3600000", "h"], ["86400000", "d"]], "1000");
  unit.setAttribute("aria-label", "Unit of the delay");
  const result = h("div", { role: "status", "aria-live": "polite" });
  let form = "text";

  function choose(chosen) {
    form = chosen;
    show(forms, choice("The value is", FORMS, form, choose));
  }

  async function publish(event) {
    event.preventDefault();
    const press = event.currentTarget.querySelector("button.primary");
    press.disabled = true;
    try {
      const message = written();
      const answer = await send("POST", path`/topics/${topic.value}/messages`, message);
      show(result, h("p", { class: "done" }, said(answer)));
    } catch (error) {
      show(result, h("p", { class: "refused", role: "alert" }, error.message));
    } finally {
      press.disabled = false;
    }
  }

  function written() {
    const message = {};
    if (form === "base64") message.value_base64 = value.value.trim();
    if (form === "text") message.value = value.value;
    if (key.value) message.key = key.value;
    if (headers.values().length) message.headers = headers.values();
    if (partition.value !== "") message.partition = Number(partition.value);
    if (lane.value) message.priority = lane.value;
    if (Number(delay.value) > 0) message.delay_ms = Math.round(Number(delay.value) * Number(unit.value));
    const fields = JSON.stringify(message).slice(1);
    // As typed: JavaScript would round long numbers.
    return form === "json" ? `{"value":${checked(value.value)}${fields === "}" ? "" : ","}${fields}` : `{${fields}`;
  }

  choose("text");
  show(
    view.main,
    heading("Produce"),
    card(
      null,
      h(
        "form",
        { class: "produce", on: { submit: publish } },
        field("Topic", topic, "Created if it does not exist."),
        known,
        field("Key", key, "Messages with the same key stay in order."),
        h("div", { class: "field" }, h("span", { class: "split" }, h("label", { for: "value" }, "Value"), forms), Object.assign(value, { id: "value" })),
        headers.element,
        h("div", { class: "columns" }, field("Partition", partition), field("Priority lane", lane), h("div", { class: "joined" }, field("Delay", delay), unit)),
        h("div", { class: "actions" }, h("button", { class: "primary" }, "Publish")),
        result,
      ),
    ),
  );
  get("/topics", { limit: 1000 }, view.signal).then(
    ({ topics }) => show(known, topics.map(({ name }) => h("option", { value: name }))),
    () => {}, // suggestions are optional
  );
  return "Produce";
}

function checked(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`the value is not JSON: ${error.message}`);
  }
  return text;
}

function said(answer) {
  if (answer.delayed_id !== undefined) {
    return ["Waits until ", format.timestamp(answer.deliver_at), ". ", h("a", { href: toDelayed(answer.topic) }, "See it")];
  }
  const { topic, partition, offset } = answer;
  const where = toMessages(topic, { partition, by: "offset", at: offset, open: `${partition}/${offset}` });
  return [`Published to partition ${partition} at offset ${offset}. `, h("a", { href: where }, "See it")];
}
