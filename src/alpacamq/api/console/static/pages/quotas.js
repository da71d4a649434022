// Quotas of users, client ids and addresses: a list, and a form that sets, changes and removes them.

import { get, send } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toQuota } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { badge, card, confirm, field, form, heading, select, table, toast, trail } from "../parts.js";

const EVERY_MS = 10_000;
const PARTS = { user: "User", client_id: "Client id", ip: "Address" };
const bytesPerSecond = (value) => `${format.bytes(value)}/s`;
// `of` says which entities can have it.
const QUOTAS = {
  producer_byte_rate: { name: "Produce", unit: "bytes a second", show: bytesPerSecond, of: ["user", "client_id"] },
  consumer_byte_rate: { name: "Fetch", unit: "bytes a second", show: bytesPerSecond, of: ["user", "client_id"] },
  request_percentage: { name: "Requests", unit: "percent of the broker's time", show: (value) => `${value} %`, of: ["user", "client_id"] },
  controller_mutation_rate: { name: "Partitions", unit: "created and deleted a second", show: (value) => `${format.count(value)}/s`, of: ["user", "client_id"] },
  connection_creation_rate: { name: "New connections", unit: "a second", show: (value) => `${format.count(value)}/s`, of: ["user", "ip"] },
  connection_count: { name: "Open connections", unit: "at once", show: format.count, of: ["user", "ip"] },
};

export function quotas(view, _, query) {
  let found = null;
  const list = h("div", { class: "stack" });
  const { filter, shown } = listing(view, query, "Filter quotas by user, client id or address", () => found && show(list, draw(found)), "User, client id or address");
  const add = h("a", { class: "button primary", href: toQuota({}) }, "New quota");
  show(view.main, heading("Quotas", add), h("div", { class: "tools" }, filter), list);
  const load = (signal) => get("/quotas", { limit: LIMIT }, signal);
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.quotas, describe);
    return [
      table(
        [
          { label: "Of", kind: "name", cell: (row) => h("a", { href: toQuota(addressOf(row)) }, describe(row)) },
          { label: "Limits", cell: (row) => h("span", { class: "chips" }, Object.entries(row.values).map(([key, value]) => badge(`${QUOTAS[key]?.name ?? key} ${QUOTAS[key]?.show(value) ?? value}`))) },
        ],
        rows,
        { key: describe, label: "Quotas", empty: isFiltered ? "No quota matches." : "No quotas: clients are limited by the configuration only." },
      ),
      pager,
      answer.total > answer.quotas.length ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} of ${format.count(answer.total)} are listed.`) : null,
      h("p", { class: "note" }, "Limits are those of one broker. Rates that all clients of a tenant share are ", h("a", { href: "#/tenants" }, "limits of the tenant"), "."),
    ];
  };
  view.live(list, load, draw, { every: EVERY_MS, actions: [add] });
  return "Quotas";
}

/** Name the entity of quotas. */
function describe(row) {
  return Object.entries(PARTS)
    .filter(([part]) => row[part] !== null || row.defaults.includes(part))
    .map(([part, name]) => (row[part] === null ? `every other ${name.toLowerCase()}` : `${name.toLowerCase()} ${row[part]}`))
    .join(", ");
}

const addressOf = ({ user, client_id, ip, defaults }) => ({ user, client_id, ip, defaults: defaults.join(",") });

export function quotaChanges(view, _, query) {
  const entity = Object.fromEntries(Object.keys(PARTS).map((part) => [part, query.get(part)]));
  entity.defaults = (query.get("defaults") ?? "").split(",").filter((part) => part in PARTS);
  const isNew = describe(entity) === "";
  const title = isNew ? "New quota" : `Quota of ${describe(entity)}`;
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Quotas", "#/quotas"], [isNew ? "New quota" : describe(entity)]), heading(title), body);
  const load = async (signal) => {
    const named = Object.fromEntries(Object.keys(PARTS).map((part) => [part, entity[part]]));
    const { quotas: known } = await get("/quotas", { ...named, limit: LIMIT }, signal);
    return isNew ? {} : (known.find((each) => describe(each) === describe(entity))?.values ?? {});
  };
  const draw = () => view.once(body, load, (values) => [card(null, changes(entity, isNew, values, draw)), isNew || !Object.keys(values).length ? null : card("Remove", removal(entity, values))]);
  draw();
  return title;
}

/** Set values of an entity; null removes one. */
function alter({ user, client_id, ip, defaults }, values) {
  const named = Object.entries({ user, client_id, ip }).filter(([, name]) => name !== null && name !== undefined);
  return send("PATCH", "/quotas", { ...Object.fromEntries(named), defaults, values });
}

function changes(given, isNew, values, changed) {
  const inputs = Object.entries(QUOTAS).map(([key, { name, unit }]) => {
    const input = h("input", { type: "number", min: 0, step: "any", value: values[key] ?? "", inputmode: "decimal", placeholder: "no limit" });
    return { key, input, element: field(name, input, unit) };
  });
  const whose = isNew ? entityFields(() => fit(whose.value())) : { element: null, value: () => given };
  function fit(entity) {
    const parts = Object.keys(PARTS).filter((part) => entity[part] !== null || entity.defaults.includes(part));
    for (const { key, element } of inputs) {
      const { of } = QUOTAS[key];
      // Connections are those of a user, not of one of its client ids.
      element.hidden = parts.some((part) => !of.includes(part));
    }
  }
  fit(whose.value());
  const save = async () => {
    const wanted = {};
    for (const { key, input, element } of inputs) {
      if (element.hidden) continue;
      if (input.value === "" && key in values) wanted[key] = null;
      else if (input.value !== "" && Number(input.value) !== values[key]) wanted[key] = Number(input.value);
    }
    if (!Object.keys(wanted).length) throw new Error(isNew ? "give at least one limit" : "no limit was changed");
    const entity = whose.value();
    await alter(entity, wanted);
    toast(`The quota of ${describe(entity)} is ${isNew ? "set" : "changed"}.`);
    if (isNew) location.hash = toQuota(addressOf(entity));
    else await changed();
  };
  return form(
    isNew ? "Set" : "Save",
    save,
    whose.element,
    h("div", { class: "columns level" }, inputs.map(({ element }) => element)),
    h("p", { class: "note" }, "An empty field is no limit of this quota: the next less specific one counts."),
  );
}

/** Fields for a user, a client id or an address: {element, value()}. */
function entityFields(changed) {
  const rows = Object.entries(PARTS).map(([part, label]) => {
    const name = h("input", { "aria-label": `Name of the ${label.toLowerCase()}`, autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: 255, hidden: true });
    const how = select([["", "any"], ["named", "this one"], ["default", "every other, each"]], part === "user" ? "named" : "", fit);
    function fit(chosen) {
      name.hidden = chosen !== "named";
      name.required = chosen === "named";
      changed();
    }
    name.hidden = part !== "user";
    name.required = part === "user";
    return { part, how, name, element: h("div", { class: "stack tight" }, field(label, how), name) };
  });
  const value = () => ({
    ...Object.fromEntries(rows.map(({ part, how, name }) => [part, how.value === "named" ? name.value : null])),
    defaults: rows.filter(({ how }) => how.value === "default").map(({ part }) => part),
  });
  return { element: h("div", { class: "columns level" }, rows.map(({ element }) => element)), value };
}

function removal(entity, values) {
  const drop = async () => {
    if (!(await confirm(`Remove the quota of ${describe(entity)}?`, "The next less specific quota counts then, if there is one.", "Remove"))) return;
    try {
      await alter(entity, Object.fromEntries(Object.keys(values).map((key) => [key, null])));
      toast(`The quota of ${describe(entity)} is removed.`);
      location.hash = "#/quotas";
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return h("div", { class: "actions" }, h("button", { type: "button", class: "danger", on: { click: drop } }, "Remove all its limits"));
}
