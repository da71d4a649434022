// API keys: a list, in which they are replaced and deleted, and a form for a new one. A secret is shown once.

import { get, path, send, session } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { listing } from "../listing.js";
import { badge, card, confirm, copyButton, facts, field, form, heading, notice, table, toast, trail } from "../parts.js";

const EVERY_MS = 10_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
// Operations that a key can be limited to.
const SCOPES = ["read", "write", "create", "delete", "alter", "describe", "alter-configs", "describe-configs", "idempotent-write", "cluster-action", "two-phase-commit", "create-tokens", "describe-tokens"];

export function apiKeys(view, _, query) {
  let found = null;
  const secret = h("div");
  const list = h("div", { class: "stack" });
  const { filter, shown } = listing(view, query, "Filter keys by owner or description", () => found && show(list, draw(found)), "Owner or description");
  const add = h("a", { class: "button primary", href: "#/new-api-key" }, "New key");
  show(view.main, heading("API keys", add), secret, h("div", { class: "tools" }, filter), list);
  const load = (signal) => get("/keys", {}, signal);
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.keys, (row) => `${row.owner} ${row.description} ${row.id}`);
    return [
      session.isAvailable ? null : notice("Authentication is off: clients need no key."),
      table(
        [
          { label: "Key", kind: "name", cell: (row) => [row.description || h("span", { class: "note" }, "no description"), h("br"), h("code", null, row.id)] },
          { label: "Owner", cell: (row) => row.owner },
          { label: "Scopes", kind: "wide", cell: (row) => (row.scopes.length ? h("span", { class: "chips" }, row.scopes.map((each) => badge(each))) : "all") },
          { label: "Expires", kind: "number", cell: (row) => expiry(row) },
          { label: "Last used here", kind: "number wide", cell: (row) => (row.last_used === null ? "–" : format.ago(row.last_used)) },
          { label: "", kind: "number", cell: (row) => h("span", { class: "actions end" }, isExpired(row) ? null : act("Replace", row, replace), act("Delete", row, drop)) },
        ],
        rows,
        { key: (row) => row.id, label: "API keys", isStacked: true, empty: isFiltered ? "No key matches." : "No keys yet." },
      ),
      pager,
    ];
  };
  const act = (label, row, work) => h("button", { type: "button", class: "quiet", "aria-label": `${label} ${row.description || row.id}`, on: { click: () => work(row).catch((error) => toast(error.message, "bad")) } }, label);
  const drop = async (row) => {
    if (!(await confirm("Delete this key?", `Clients that use ${row.description || row.id} of ${row.owner} are refused at once.`, "Delete"))) return;
    await send("DELETE", path`/keys/${row.id}`);
    toast("The key is deleted.");
    again();
  };
  const replace = async (row) => {
    if (!(await confirm("Replace this key?", `A new key with the same owner and scopes is created. ${row.description || row.id} works for another 7 days.`, "Replace"))) return;
    show(secret, secretCard(await send("POST", path`/keys/${row.id}/rotate`, {})));
    secret.querySelector("h2").focus();
    again();
  };
  const again = view.live(list, load, draw, { every: EVERY_MS, actions: [add] });
  return "API keys";
}

const isExpired = ({ expires }) => expires !== null && expires <= Date.now();

function expiry(row) {
  if (row.expires === null) return "never";
  const left = row.expires - Date.now();
  return isExpired(row) ? badge("expired", "bad") : badge(`in ${format.span(left)}`, left < DAY_MS ? "warn" : "");
}

const secretCard = (key) =>
  h(
    "section",
    { class: "card secret", role: "status" },
    h("h2", { tabindex: "-1" }, "Keep the key now: it is not shown again"),
    facts([
      ["Key", [h("code", null, key.key), copyButton(() => key.key, "key")]],
      ["AWS access key id", h("code", null, key.id)],
      ["AWS secret access key", [h("code", null, key.aws_secret_access_key), copyButton(() => key.aws_secret_access_key, "AWS secret access key")]],
    ]),
  );

export function newApiKey(view) {
  const body = h("div", { class: "stack" });
  const owner = h("input", { autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: 255, placeholder: session.user ?? "a user", required: session.user === null });
  const description = h("input", { autocomplete: "off", maxlength: 255 });
  const days = h("input", { type: "number", min: 1, max: 36500, placeholder: "never", inputmode: "numeric" });
  const scopes = SCOPES.map((scope) => h("input", { type: "checkbox", value: scope }));
  const create = async () => {
    const wanted = { description: description.value, scopes: scopes.filter(({ checked }) => checked).map(({ value }) => value) };
    if (owner.value) wanted.owner = owner.value;
    if (days.value) wanted.expires_in_ms = Number(days.value) * DAY_MS;
    const key = await send("POST", "/keys", wanted);
    show(body, secretCard(key), h("p", null, h("a", { href: "#/api-keys" }, "All keys")));
    body.querySelector("h2").focus();
  };
  show(
    view.main,
    trail(["API keys", "#/api-keys"], ["New key"]),
    heading("New key"),
    body,
  );
  show(
    body,
    card(
      null,
      form(
        "Create",
        create,
        h("div", { class: "columns level" }, field("Owner", owner, "The user that it acts for."), field("Description", description)),
        h("div", { class: "columns level" }, field("Expires after days", days)),
        h(
          "fieldset",
          { class: "field" },
          h("legend", null, "Scopes"),
          h("div", { class: "chips" }, scopes.map((input) => h("label", { class: "check" }, input, input.value))),
          h("span", { class: "hint" }, "The operations that the key is limited to. Without any, it may do everything that its owner may."),
        ),
      ),
    ),
  );
  return "New key";
}
