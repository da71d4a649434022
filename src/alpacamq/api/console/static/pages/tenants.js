// Tenants: a list, a form for a new one, and one tenant with its usage, limits and principals.

import { get, path, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toTenant } from "../links.js";
import { listing } from "../listing.js";
import { badge, bar, button, card, confirm, field, form, heading, stat, stats, table, toast, trail } from "../parts.js";

const EVERY_MS = 10_000;
const TONES = { active: "good", suspended: "warn", disabled: "bad" };
const LIMITS = {
  topics: "Topics",
  partitions: "Partitions",
  storage_bytes: "Stored bytes",
  message_bytes: "Bytes of a message",
  connections: "Connections to a broker",
  groups: "Groups",
  group_members: "Members of a group",
  retention_ms: "Longest retention, ms",
  delay_ms: "Longest delay, ms",
  produce_bytes_per_second: "Bytes published a second",
  fetch_bytes_per_second: "Bytes read a second",
  produce_messages_per_second: "Messages published a second",
  fetch_messages_per_second: "Messages read a second",
};

export function tenants(view, _, query) {
  let found = null;
  const list = h("div", { class: "stack" });
  const { filter, shown } = listing(view, query, "Filter tenants by id", () => found && show(list, draw(found)), "Filter by id");
  const add = h("a", { class: "button primary", href: "#/new-tenant" }, "New tenant");
  show(view.main, heading("Tenants", add), h("div", { class: "tools" }, filter), list);
  const load = (signal) => get("/admin/tenants", {}, signal);
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.tenants, (row) => row.id);
    return [
      table(
        [
          { label: "Tenant", kind: "name", cell: (row) => h("a", { href: toTenant(row.id) }, row.id) },
          { label: "Status", cell: (row) => badge(row.status, TONES[row.status]) },
          { label: "Description", kind: "wide", cell: (row) => row.description },
          { label: "Principals", kind: "number", cell: (row) => format.count(row.principals.length) },
          { label: "Limits", kind: "number", cell: (row) => format.count(Object.keys(row.limits).length) },
        ],
        rows,
        { key: (row) => row.id, label: "Tenants", empty: isFiltered ? "No tenant matches." : "No tenants. Without them all clients share the names of topics and groups." },
      ),
      pager,
    ];
  };
  view.live(list, load, draw, { every: EVERY_MS, actions: [add] });
  return "Tenants";
}

export function newTenant(view) {
  const id = h("input", { required: true, autocomplete: "off", autocapitalize: "none", spellcheck: "false", pattern: "[a-z0-9\\-]+", maxlength: 32 });
  const description = h("input", { autocomplete: "off", maxlength: 1000 });
  const create = async () => {
    await send("POST", "/admin/tenants", { id: id.value, description: description.value });
    toast(`Tenant ${id.value} is created.`);
    location.hash = toTenant(id.value);
  };
  show(
    view.main,
    trail(["Tenants", "#/tenants"], ["New tenant"]),
    heading("New tenant"),
    card(null, form("Create", create, field("Id", id, "Up to 32 small letters, digits and hyphens."), field("Description", description))),
  );
  return "New tenant";
}

export function tenant(view, { tenant: id }) {
  const where = path`/admin/tenants/${id}`;
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Tenants", "#/tenants"], [id]), heading(id), body);
  const load = async (signal) => {
    const [described, usage] = await Promise.all([get(where, {}, signal), get(`${where}/usage`, {}, signal)]);
    return { described, usage };
  };
  const draw = () => view.once(body, load, sections);
  const sections = ({ described, usage }) => [
    stats(
      stat("Status", described.status, { tone: TONES[described.status], note: described.reason || null }),
      used("Topics", usage.topics, described.limits.topics),
      used("Partitions", usage.partitions, described.limits.partitions),
      used("Stored", usage.storage_bytes, described.limits.storage_bytes, format.bytes),
      used("Groups", usage.groups, described.limits.groups),
      stat("Messages", format.brief(usage.messages)),
    ),
    card("Limits", limitsForm(where, described, draw)),
    card("Principals", principals(where, described, draw)),
    card("Status", statusForm(where, described, draw)),
  ];
  draw();
  return id;
}

const used = (label, amount, limit, shown = format.brief) =>
  stat(label, shown(amount), { note: limit === undefined ? "no limit" : `of ${shown(limit)}`, chart: limit === undefined ? null : bar([["used", Math.min(amount, limit), amount >= limit ? "tone-3" : "tone-1"]], limit) });

function limitsForm(where, { description, limits }, changed) {
  const text = h("input", { value: description, maxlength: 1000, autocomplete: "off" });
  const inputs = Object.entries(LIMITS).map(([name, label]) => [name, h("input", { type: "number", min: 0, value: limits[name] ?? "", placeholder: "no limit", inputmode: "numeric" }), label]);
  const save = async () => {
    const wanted = {};
    for (const [name, input] of inputs) {
      if (input.value === "" && name in limits) wanted[name] = null;
      else if (input.value !== "" && Number(input.value) !== limits[name]) wanted[name] = Number(input.value);
    }
    if (!Object.keys(wanted).length && text.value === description) throw new Error("nothing was changed");
    await send("PATCH", where, { description: text.value, limits: wanted });
    toast("The limits are changed.");
    await changed();
  };
  return form("Save", save, field("Description", text), h("div", { class: "columns level" }, inputs.map(([, input, label]) => field(label, input))));
}

function principals(where, described, changed) {
  const remove = async (principal) => {
    if (!(await confirm(`Remove ${principal}?`, "It keeps its password and keys, and is a client without a tenant then.", "Remove"))) return;
    await send("DELETE", `${where}/principals/${encodeURIComponent(principal)}`);
    toast(`${principal} is removed.`);
    await changed();
  };
  const name = h("input", { required: true, placeholder: "User:alice", autocomplete: "off", autocapitalize: "none", spellcheck: "false" });
  const admin = h("input", { type: "checkbox" });
  const add = async () => {
    await send("PUT", `${where}/principals/${encodeURIComponent(name.value)}`, { admin: admin.checked });
    toast(`${name.value} belongs to the tenant.`);
    await changed();
  };
  return [
    table(
      [
        { label: "Principal", kind: "name", cell: (row) => row.principal },
        { label: "", cell: (row) => (row.admin ? badge("administrator", "live") : null) },
        { label: "", kind: "number", cell: (row) => button("Remove", () => remove(row.principal), { tone: "quiet", title: `Remove ${row.principal}` }) },
      ],
      described.principals,
      { key: (row) => `${row.principal}/${row.admin}`, label: "Principals", empty: "No principals yet." },
    ),
    form("Add", add, field("Principal", name), h("label", { class: "check" }, admin, "may do everything inside the tenant")),
  ];
}

const SUSPENDED = "All requests of its clients are refused from now on, with the reason. Its data stays, and it can be activated again.";
const DISABLED = "Its clients cannot log in any more, and their requests are refused. Its data stays, and it can be activated again.";

function statusForm(where, { id, status }, changed) {
  const reason = h("input", { autocomplete: "off", maxlength: 1000 });
  const become = async (verb, done, body) => {
    await send("POST", `${where}/${verb}`, body);
    toast(`Tenant ${id} is ${done}.`);
    await changed();
  };
  const stop = (label, verb, done, effect) => async () => {
    if (await confirm(`${label} ${id}?`, effect, label)) await become(verb, done, { reason: reason.value });
  };
  const drop = async () => {
    if (!(await confirm(`Delete ${id}?`, "Its clients are refused from now on. A tenant that has topics or groups is not deleted.", "Delete", id))) return;
    await send("DELETE", where);
    toast(`Tenant ${id} is deleted.`);
    location.hash = "#/tenants";
  };
  return [
    field("Reason", reason, "Clients of the tenant see it when they are refused."),
    h(
      "div",
      { class: "actions below" },
      status === "active" ? null : button("Activate", () => become("activate", "active")),
      status === "suspended" ? null : button("Suspend", stop("Suspend", "suspend", "suspended", SUSPENDED)),
      status === "disabled" ? null : button("Disable", stop("Disable", "disable", "disabled", DISABLED)),
      button("Delete tenant", drop, { tone: "danger" }),
    ),
  ];
}
