// A form in which a schema is checked against the versions of a subject, and registered.

import { find, path, Problem, send } from "../api.js";
import { h, show } from "../dom.js";
import { indented } from "../exact.js";
import { toSchemaCheck, toSubject, toSubjects } from "../links.js";
import { card, field, heading, select, table, trail } from "../parts.js";
import { textView } from "../value.js";
import { settingsOf, typeName } from "./schemas.js";

const TYPES = ["AVRO", "JSON", "PROTOBUF"].map((type) => [type, typeName(type)]);
const REASON = /^\{errorType:'(.*?)', description:'(.*)', additionalInfo:'(.*)'\}$/s;
const EARLIER = /^\{oldSchema: '(.*)'\}$/s;

export function schemaCheck(view, _, query) {
  const given = query.get("subject") ?? "";
  const name = h("input", { required: true, value: given, autocomplete: "off", maxlength: 1000, spellcheck: "false" });
  const type = select(TYPES, "AVRO");
  const text = h("textarea", { rows: 16, required: true, spellcheck: "false" });
  const references = h("div", { class: "pairs" });
  const result = h("div", { class: "stack", role: "status", "aria-live": "polite" });

  function addReference({ name: called = "", subject = "", version = "" } = {}) {
    const input = (label, value, more = {}) => h("input", { placeholder: label, "aria-label": `${label} of the reference`, value, autocomplete: "off", spellcheck: "false", ...more });
    const remove = h("button", { type: "button", class: "quiet", "aria-label": "Remove the reference", on: { click: () => row.remove() } }, "✕");
    const row = h("div", { class: "reference" }, input("name", called), input("subject", subject), input("version", version, { type: "number", min: -1 }), remove);
    references.append(row);
    return row;
  }

  function written() {
    const rows = [...references.querySelectorAll(".reference")].map((row) => [...row.querySelectorAll("input")].map((input) => input.value));
    const used = rows.filter(([called]) => called).map(([called, subject, version]) => ({ name: called, subject, version: Number(version) || -1 }));
    return { schema: text.value, schemaType: type.value, ...(used.length && { references: used }) };
  }

  /** Do something with what is written, and show its result. */
  async function act(form, work) {
    if (!form.reportValidity()) return;
    const buttons = form.querySelectorAll(".actions button");
    for (const each of buttons) each.disabled = true;
    try {
      show(result, await work(name.value, written()));
    } catch (error) {
      show(result, h("p", { class: "refused", role: "alert" }, error.message));
    } finally {
      for (const each of buttons) each.disabled = false;
    }
  }

  const submit = (event) => {
    event.preventDefault();
    act(event.currentTarget, check);
  };
  show(
    view.main,
    trail(["Schemas", toSubjects()], ...(given ? [[given, toSubject(given)]] : []), [given ? "New version" : "New schema"]),
    heading(given ? "New version" : "New schema"),
    card(
      null,
      h(
        "form",
        { class: "produce", on: { submit } },
        h("div", { class: "columns level" }, field("Subject", name, "For the values of a topic: the topic and -value."), field("Type", type)),
        field("Schema", text),
        h("fieldset", { class: "field" }, h("legend", null, "References"), references, h("button", { type: "button", class: "quiet", on: { click: () => addReference().querySelector("input").focus() } }, "+ Add a reference")),
        h(
          "div",
          { class: "actions" },
          h("button", { class: "primary" }, "Check"),
          h("button", { type: "button", on: { click: (event) => act(event.currentTarget.form, register) } }, "Register"),
        ),
        result,
      ),
    ),
  );
  if (given) fill(given, view.signal);

  /** Begin with the latest version. */
  async function fill(subject, signal) {
    const latest = await find(path`/schemas/subjects/${subject}/versions/latest`, {}, signal).catch(() => null);
    if (signal.aborted || latest === null || text.value) return;
    type.value = latest.schemaType ?? "AVRO";
    text.value = indented(latest.schema);
    (latest.references ?? []).forEach(addReference);
  }
  return given ? `New version of ${given}` : "New schema";
}

async function register(subject, schema) {
  const made = await send("POST", path`/schemas/subjects/${subject}/versions`, schema);
  return h("p", { class: "done" }, `Registered with id ${made.id}. `, h("a", { href: toSubject(subject, { version: made.version }) }, `See version ${made.version}`));
}

/** Return whether a schema would be accepted, and all reasons why not. */
async function check(subject, schema) {
  const [answer, { level, mode, isReadOnly }] = await Promise.all([
    send("POST", `${path`/schemas/compatibility/subjects/${subject}/versions`}?verbose=true`, schema),
    settingsOf(subject),
  ]);
  const rule = level ? ` (${level})` : "";
  if (!answer.is_compatible) return incompatible(answer.messages ?? [], rule);
  const known = await lookUp(subject, schema);
  if (known) return h("p", { class: "done" }, "The subject has this schema already: ", h("a", { href: toSubject(subject, { version: known.version }) }, `version ${known.version}`), ".");
  if (isReadOnly) return h("p", { class: "refused", role: "alert" }, `The schema is compatible${rule}, but would not be accepted: the mode of the subject is ${mode}.`);
  return h("p", { class: "done" }, `The schema is compatible${rule} and would be accepted.`);
}

async function lookUp(subject, schema) {
  try {
    return await send("POST", path`/schemas/subjects/${subject}`, schema);
  } catch (error) {
    if (error instanceof Problem) return null; // the subject or the schema is new
    throw error;
  }
}

function incompatible(messages, rule) {
  const reasons = messages.map((each) => REASON.exec(each)).filter(Boolean);
  const earlier = messages.map((each) => EARLIER.exec(each)?.[1]).find(Boolean);
  return [
    h("p", { class: "refused", role: "alert" }, `The schema is not compatible${rule} and would be refused.`),
    table(
      [
        { label: "Where", kind: "name", cell: ([, , , place]) => h("code", null, place || "/") },
        { label: "Why", cell: ([, , why]) => why },
        { label: "Rule", kind: "wide", cell: ([, kind]) => h("code", null, kind) },
      ],
      reasons,
      { label: "Reasons", empty: "No reasons are given." },
    ),
    earlier ? h("details", { class: "fold" }, h("summary", null, "The version it was compared with"), textView(indented(earlier), "earlier")) : null,
  ];
}
