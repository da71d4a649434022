// Access rules (ACLs): a list, in which rules are deleted, and a form for a new one.

import { get, path, Problem, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toNewRule, toRules } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { badge, button, card, confirm, field, form, heading, notice, select, table, toast, trail } from "../parts.js";

const EVERY_MS = 10_000;
// The kinds of resources, and the operations on each, beside `all`.
const RESOURCES = {
  topic: { name: "Topic", operations: ["read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs"] },
  group: { name: "Group", operations: ["read", "delete", "describe", "describe-configs", "alter-configs"] },
  cluster: { name: "Cluster", operations: ["create", "alter", "describe", "describe-configs", "alter-configs", "cluster-action", "idempotent-write"] },
  "transactional-id": { name: "Transactional id", operations: ["write", "describe", "two-phase-commit"] },
  "delegation-token": { name: "Delegation token", operations: ["describe"] },
  user: { name: "Tokens of a user", operations: ["create-tokens", "describe-tokens"] },
};

export function accessRules(view, _, query) {
  let kind = query.get("resource") ?? "";
  let found = null;
  const list = h("div", { class: "stack" });
  const redraw = () => found && show(list, draw(found));
  const { filter, shown } = listing(view, query, "Filter rules by principal, name or operation", redraw, "Principal, name or operation");
  const kinds = select([["", "All resources"], ...Object.entries(RESOURCES).map(([value, { name }]) => [value, name])], kind, (chosen) => {
    kind = chosen;
    view.keep({ resource: kind });
    again();
  });
  kinds.setAttribute("aria-label", "Resource");
  const add = h("a", { class: "button primary", href: toNewRule() }, "New rule");
  show(view.main, heading("Access rules", add), h("div", { class: "tools" }, filter, kinds), list);
  const load = async (signal) => {
    try {
      return await get("/acls", { limit: LIMIT, resource: kind }, signal);
    } catch (error) {
      if (isOff(error)) return { isOff: true };
      throw error;
    }
  };
  const draw = (answer) => {
    found = answer;
    add.hidden = answer.isOff === true;
    if (answer.isOff) return offNotice();
    const { rows, pager, isFiltered } = shown(answer.rules, (row) => `${row.principal} ${row.resource} ${row.name} ${row.operation}`);
    return [
      table(
        [
          { label: "Permission", cell: (row) => badge(row.permission, row.permission === "deny" ? "bad" : "good") },
          { label: "Principal", kind: "name", cell: (row) => h("a", { href: toRules(row.principal) }, row.principal === "User:*" ? "everyone" : row.principal) },
          { label: "Operation", cell: (row) => row.operation },
          { label: "Resource", kind: "name", cell: (row) => [h("span", { class: "note" }, `${row.resource} `), row.resource === "cluster" ? null : row.name, row.pattern === "prefixed" ? [" ", badge("prefix")] : null] },
          { label: "From", kind: "wide", cell: (row) => (row.host === "*" ? "anywhere" : row.host) },
          { label: "", kind: "number", cell: (row) => h("button", { type: "button", class: "quiet", "aria-label": `Delete: ${sentence(row)}`, on: { click: () => drop(row) } }, "Delete") },
        ],
        rows,
        { key: (row) => row.id, label: "Access rules", isStacked: true, empty: isFiltered || kind ? "No rule matches." : "No rules yet: only super users may do anything." },
      ),
      pager,
      answer.total > answer.rules.length ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} of ${format.count(answer.total)} are listed.`) : null,
    ];
  };
  const drop = async (row) => {
    if (!(await confirm("Delete this rule?", `${sentence(row)}. Its deletion counts from the next request on.`, "Delete"))) return;
    try {
      await send("DELETE", path`/acls/${row.id}`);
      toast("The rule is deleted.");
    } catch (error) {
      toast(error.message, "bad");
    }
    again();
  };
  const again = view.live(list, load, draw, { every: EVERY_MS, actions: [add] });
  return "Access rules";
}

const isOff = (error) => error instanceof Problem && error.type.endsWith(":security-disabled");

const offNotice = () => notice("Access rules are off: every client may do everything. Set ", h("code", null, "security.acls = true"), " and restart the broker.");

function sentence({ permission, principal, operation, resource, name, pattern, host }) {
  const what = resource === "cluster" ? "the cluster" : pattern === "prefixed" ? `each ${resource} whose name begins with ${name}` : `${resource} ${name}`;
  return `${permission === "deny" ? "Deny" : "Allow"} ${principal} ${operation} on ${what}${host === "*" ? "" : ` from ${host}`}`;
}

export function newRule(view, _, query) {
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Access rules", "#/access-rules"], ["New rule"]), heading("New rule"), body);
  const load = async (signal) => {
    try {
      await get("/acls", { limit: 1 }, signal);
    } catch (error) {
      if (isOff(error)) return null;
      throw error;
    }
    // Suggestions are optional: the reader may have no right to list users.
    return get("/users", { limit: 1000 }, signal).then(({ users }) => users.map(({ name }) => name), () => []);
  };
  view.once(body, load, (names) => (names === null ? offNotice() : card(null, creation(names, query.get("principal") ?? ""))));
  return "New rule";
}

function creation(names, principalGiven) {
  const text = (more) => h("input", { required: true, autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: 1000, ...more });
  const permission = select([["allow", "Allow"], ["deny", "Deny"]], "allow");
  const known = h("datalist", { id: "known-principals" }, names.map((name) => h("option", { value: `User:${name}` })));
  const principal = text({ list: known.id, value: principalGiven, placeholder: "User:alice" });
  const operations = h("div");
  const place = h("div", { class: "columns level" });
  const host = text({ value: "*" });
  const name = text({ placeholder: "orders" });
  const pattern = select([["literal", "this name"], ["prefixed", "names that begin so"]], "literal");
  const named = [field("Name", name, "* is all."), field("Matches", pattern)];
  let operation = null;
  const resource = select(Object.entries(RESOURCES).map(([value, each]) => [value, each.name]), "topic", fit);
  function fit(kind) {
    operation = select([...RESOURCES[kind].operations, "all"].map((each) => [each, each]), RESOURCES[kind].operations[0]);
    operations.replaceChildren(field("Operation", operation));
    name.required = kind !== "cluster";
    for (const each of named) each.hidden = kind === "cluster";
  }
  fit("topic");
  show(place, named);
  const create = async () => {
    const rule = { resource: resource.value, principal: principal.value, operation: operation.value, host: host.value, permission: permission.value };
    if (rule.resource !== "cluster") Object.assign(rule, { name: name.value, pattern: pattern.value });
    const created = await send("POST", "/acls", rule);
    toast(`${sentence(created)}: the rule is in force.`);
    location.hash = toRules(created.principal);
  };
  return form(
    "Create",
    create,
    h("div", { class: "columns level" }, field("Permission", permission, "A rule that denies wins."), field("Principal", principal, "User:* is everyone."), known),
    h("div", { class: "columns level" }, field("Resource", resource), operations),
    place,
    field("From", host, "An address of a client; * is any."),
  );
}
