// The subjects of the schema registry, and one subject with its versions and their differences.

import { find, get, path, Unreachable } from "../api.js";
import { changes, diffView } from "../diff.js";
import { h, show } from "../dom.js";
import { indented } from "../exact.js";
import * as format from "../format.js";
import { toSchemaCheck, toSubject, toSubjects } from "../links.js";
import { badge, card, empty, facts, field, heading, refused, select, stat, stats, table, trail } from "../parts.js";
import { textView } from "../value.js";

const PAGE = 100;
const LISTED_VERSIONS = 100;
const EVERY_MS = 5000;
const RETRY_MS = 1000;
const READ_ONLY = new Set(["READONLY", "READONLY_OVERRIDE"]);

export function subjects(view, _, query) {
  let contains = query.get("contains") ?? "";
  let offset = Math.max(Number(query.get("offset")) || 0, 0);
  const list = h("div", { class: "stack" });
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by name",
    "aria-label": "Filter subjects by name",
    value: contains,
    on: {
      input: (event) => {
        contains = event.currentTarget.value;
        offset = 0;
        history.replaceState(null, "", toSubjects({ contains }));
        again();
      },
    },
  });
  show(view.main, heading("Schemas", h("a", { class: "button primary", href: toSchemaCheck() }, "New schema")), h("div", { class: "tools" }, filter), list);
  const load = async (signal) => {
    const wanted = { contains, offset, limit: PAGE };
    return { wanted, ...(await get("/schemas/descriptions", wanted, signal)) };
  };
  const draw = ({ wanted, total, subjects: found }) => [
    table(
      [
        { label: "Subject", kind: "name", cell: (row) => h("a", { href: toSubject(row.subject) }, row.subject) },
        { label: "Type", cell: (row) => typeName(row.schemaType) },
        { label: "Versions", kind: "number", cell: (row) => format.count(row.versions) },
        { label: "Latest", kind: "number wide", cell: (row) => row.latest },
        { label: "Id", kind: "number wide", cell: (row) => row.id },
        { label: "Compatibility", kind: "wide", cell: (row) => row.compatibility },
        { label: "Mode", kind: "wide", cell: (row) => modeBadge(row.mode) },
      ],
      found,
      { key: (row) => row.subject, label: "Subjects", empty: wanted.contains ? "No subject matches." : "No schemas yet. Serializers register them, or use New schema." },
    ),
    total > PAGE || wanted.offset ? pager(wanted, total, found.length) : null,
  ];
  const again = view.live(list, load, draw, { every: EVERY_MS });
  return "Schemas";
}

function pager({ contains, offset }, total, count) {
  const to = (start) => toSubjects({ contains, offset: start || "" });
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of subjects" },
    offset > 0 ? h("a", { class: "button", href: to(Math.max(offset - PAGE, 0)) }, "← Previous") : h("span"),
    h("span", { class: "note" }, `${format.count(Math.min(offset + 1, total))} to ${format.count(offset + count)} of ${format.count(total)}`),
    offset + PAGE < total ? h("a", { class: "button", href: to(offset + PAGE) }, "Next →") : h("span"),
  );
}

export const typeName = (type) => ({ AVRO: "Avro", JSON: "JSON Schema", PROTOBUF: "Protobuf" })[type] ?? type;

export const modeBadge = (mode) => badge(mode, READ_ONLY.has(mode) ? "warn" : mode === "IMPORT" ? "live" : "");

export function subject(view, { subject: name }, query) {
  const wanted = { version: query.get("version") ?? "", against: query.get("against") ?? "" };
  const body = h("div");
  const text = h("div", { class: "stack", "aria-busy": "true" }, empty("Reading…"));
  const listed = h("div");
  show(
    view.main,
    trail(["Schemas", toSubjects()], [name]),
    heading(name, h("a", { class: "button primary", href: toSchemaCheck(name) }, "New version")),
    h("div", { class: "stack" }, body, text, listed),
  );
  view.live(
    body,
    (signal) => get("/schemas/descriptions", { subject: name }, signal),
    ({ subjects: [found] }) =>
      found
        ? stats(
            stat("Latest version", found.latest, { note: `${format.count(found.versions)} in all` }),
            stat("Type", typeName(found.schemaType)),
            stat("Schema id", found.id),
            stat("Compatibility", found.compatibility),
            stat("Mode", found.mode, { tone: READ_ONLY.has(found.mode) ? "warn" : null }),
          )
        : null,
    { every: EVERY_MS },
  );
  showVersions(view, name, wanted, text, listed);
  return name;
}

async function showVersions(view, name, wanted, place, listed) {
  try {
    const numbers = await get(path`/schemas/subjects/${name}/versions`, {}, view.signal);
    const read = (version) => get(path`/schemas/subjects/${name}/versions/${version}`, {}, view.signal);
    const found = await read(wanted.version || "latest");
    const against = wanted.against ? await read(wanted.against) : null;
    show(place, controls(name, numbers, found, against), against ? comparison(against, found) : whole(found));
    show(listed, card("Versions", versions(name, numbers)));
    place.removeAttribute("aria-busy");
  } catch (error) {
    if (view.signal.aborted) return;
    if (error instanceof Unreachable) setTimeout(() => view.signal.aborted || showVersions(view, name, wanted, place, listed), RETRY_MS);
    else {
      show(place, refused(error));
      place.removeAttribute("aria-busy");
    }
  }
}

function controls(name, numbers, found, against) {
  const options = numbers.toReversed().map((number) => [String(number), `version ${number}`]);
  const go = () => (location.hash = toSubject(name, { version: version.value, against: other.value }));
  const version = select(options, String(found.version), go);
  const other = select([["", "nothing"], ...options.filter(([number]) => number !== String(found.version))], against ? String(against.version) : "", go);
  return h("div", { class: "controls" }, field("Show", version), field("Compare with", other));
}

function whole(found) {
  const references = found.references ?? [];
  return card(
    `Version ${found.version}`,
    facts([
      ["Type", typeName(found.schemaType)],
      ["Id", found.id],
      ["GUID", h("code", null, found.guid)],
      references.length ? ["Refers to", h("span", { class: "chips" }, references.map((each) => h("a", { href: toSubject(each.subject, { version: each.version }) }, `${each.name} (${each.subject}, version ${each.version})`)))] : null,
      found.metadata ? ["Metadata", h("code", null, JSON.stringify(found.metadata))] : null,
      found.ruleSet ? ["Rules", h("code", null, JSON.stringify(found.ruleSet))] : null,
    ]),
    textView(indented(found.schema), `schema ${found.id}`),
  );
}

function comparison(before, after) {
  const rows = changes(indented(before.schema), indented(after.schema));
  const count = (sign) => rows.filter(([each]) => each === sign).length;
  const isSame = !count("+") && !count("-");
  return card(
    h("span", { class: "split" }, `Version ${before.version} → ${after.version}`, h("span", null, badge(`+${format.count(count("+"))}`, "good"), " ", badge(`−${format.count(count("-"))}`, "bad"))),
    before.schemaType === after.schemaType ? null : h("p", { class: "note" }, `${typeName(before.schemaType)} became ${typeName(after.schemaType)}.`),
    isSame ? h("p", { class: "note" }, "The texts are the same; references, metadata or rules differ.") : diffView(rows),
  );
}

function versions(name, numbers) {
  const newest = numbers.toReversed();
  const rows = newest.slice(0, LISTED_VERSIONS).map((number, at) => ({ number, before: newest[at + 1] }));
  return [
    table(
      [
        { label: "Version", kind: "name", cell: (row) => h("a", { href: toSubject(name, { version: row.number }) }, `Version ${row.number}`) },
        { label: "", cell: (row) => (row.before ? h("a", { href: toSubject(name, { version: row.number, against: row.before }) }, `Changes since version ${row.before}`) : h("span", { class: "note" }, "the first one")) },
      ],
      rows,
      { key: (row) => String(row.number), label: "Versions" },
    ),
    newest.length > LISTED_VERSIONS ? h("p", { class: "note" }, `The newest ${LISTED_VERSIONS} of ${format.count(newest.length)} are shown; all can be selected above.`) : null,
  ];
}

/** Return the compatibility level and the mode that apply to a subject, whether it exists or not. */
export async function settingsOf(name, signal) {
  const [config, mode] = await Promise.all([
    find(path`/schemas/config/${name}`, { defaultToGlobal: true }, signal),
    find(path`/schemas/mode/${name}`, { defaultToGlobal: true }, signal),
  ]);
  return { level: config?.compatibilityLevel ?? null, mode: mode?.mode ?? null, isReadOnly: READ_ONLY.has(mode?.mode) };
}
