// Users: a list, a form for a new one, and one user with its password. Passwords stay in their fields only
// until they are saved.

import { get, path, send, session } from "../api.js";
import { h, show } from "../dom.js";
import * as format from "../format.js";
import { toApiKeys, toQuota, toRules, toUser } from "../links.js";
import { LIMIT, listing } from "../listing.js";
import { badge, card, confirm, empty, facts, field, form, heading, notice, select, table, toast, trail } from "../parts.js";

const EVERY_MS = 10_000;
const MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"];

export function users(view, _, query) {
  let found = null;
  const list = h("div", { class: "stack" });
  const { filter, shown } = listing(view, query, "Filter users by name", () => found && show(list, draw(found)));
  const actions = [h("a", { class: "button primary", href: "#/new-user" }, "New user")];
  show(view.main, heading("Users", actions), h("div", { class: "tools" }, filter), list);
  const load = (signal) => get("/users", { limit: LIMIT }, signal);
  const draw = (answer) => {
    found = answer;
    const { rows, pager, isFiltered } = shown(answer.users, (row) => row.name);
    return [
      loginNotice(),
      table(
        [
          { label: "User", kind: "name", cell: (row) => h("a", { href: toUser(row.name) }, row.name) },
          { label: "Logs in with", cell: (row) => h("span", { class: "chips" }, row.credentials.map(({ mechanism }) => badge(mechanism))) },
          { label: "Iterations", kind: "number wide", cell: (row) => iterations(row) },
          { label: "", kind: "number wide", cell: (row) => h("a", { href: toRules(`User:${row.name}`) }, "Access rules") },
        ],
        rows,
        { key: (row) => row.name, label: "Users", empty: isFiltered ? "No user matches." : "No users yet. Those of security.users_file are not listed." },
      ),
      pager,
      answer.next ? h("p", { class: "note" }, `Only the first ${format.count(LIMIT)} are listed.`) : null,
    ];
  };
  view.live(list, load, draw, { every: EVERY_MS, actions });
  return "Users";
}

/** Say that logins are not required, if that is so. */
function loginNotice() {
  if (session.isRequired) return null;
  if (session.isAvailable) return notice("Clients may come without a login here, as ", h("code", null, "User:ANONYMOUS"), ".");
  return notice("Authentication is off: clients need no login. Set ", h("code", null, "security.authentication = true"), " to require one.");
}

const iterations = ({ credentials }) => [...new Set(credentials.map((each) => format.count(each.iterations)))].join(", ");

/** Two fields for a new password: {elements, value(), clear()}. */
function passwordFields() {
  const input = () => h("input", { type: "password", required: true, minlength: 8, maxlength: 1024, autocomplete: "new-password" });
  const first = input();
  const again = input();
  return {
    elements: h("div", { class: "columns level" }, field("New password", first, "At least 8 characters."), field("Again", again)),
    value: () => {
      if (first.value !== again.value) throw new Error("the passwords differ");
      return first.value;
    },
    clear: () => {
      first.value = again.value = "";
    },
  };
}

export function newUser(view) {
  const name = h("input", { required: true, maxlength: 255, autocomplete: "off", autocapitalize: "none", spellcheck: "false" });
  const password = passwordFields();
  const mechanisms = select([["", "SCRAM-SHA-256 and SCRAM-SHA-512"], ...MECHANISMS.map((each) => [each, each])], "");
  const rounds = h("input", { type: "number", min: 4096, max: 16384, placeholder: "4096", inputmode: "numeric" });
  const create = async () => {
    const wanted = { name: name.value, password: password.value() };
    if (mechanisms.value) wanted.mechanisms = [mechanisms.value];
    if (rounds.value) wanted.iterations = Number(rounds.value);
    await send("POST", "/users", wanted);
    password.clear();
    toast(`User ${wanted.name} is created.`);
    location.hash = toUser(wanted.name);
  };
  show(
    view.main,
    trail(["Users", "#/users"], ["New user"]),
    heading("New user"),
    card(
      null,
      form(
        "Create",
        create,
        field("Name", name),
        password.elements,
        h("div", { class: "columns level" }, field("Logs in with", mechanisms, "And with PLAIN, in any case."), field("Iterations", rounds, "How often the password is hashed.")),
      ),
    ),
  );
  return "New user";
}

export function user(view, { user: name }) {
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Users", "#/users"], [name]), heading(name), body);
  const load = async (signal) => {
    const [found] = (await get("/users", { prefix: name, limit: 1 }, signal)).users;
    return found?.name === name ? found : null;
  };
  const draw = (found) => {
    if (found === null) return empty(`No user is named ${name}. Those of security.users_file are not listed.`);
    const ways = found.credentials.map(({ mechanism, iterations: rounds }) => [mechanism, `${format.count(rounds)} iterations`]);
    return [
      card("Logs in with", facts(ways), h("p", { class: "chips" }, related(name))),
      card("Password", passwordForm(name)),
      card("Delete", deletion(name)),
    ];
  };
  view.once(body, load, draw);
  return name;
}

const related = (name) => [
  h("a", { href: toRules(`User:${name}`) }, "Access rules"),
  h("a", { href: toQuota({ user: name }) }, "Quotas"),
  h("a", { href: toApiKeys(name) }, "API keys"),
];

function passwordForm(name) {
  const password = passwordFields();
  const change = async () => {
    await send("PUT", path`/users/${name}/password`, { password: password.value() });
    password.clear();
    toast(`The password of ${name} is changed.`);
  };
  const effect = "For every mechanism that the user has. Its logins of the console end; open connections of Kafka clients stay.";
  return form("Change password", change, h("p", { class: "note" }, effect), password.elements);
}

function deletion(name) {
  const drop = async () => {
    if (!(await confirm(`Delete ${name}?`, "Its API keys are deleted with it, and it cannot log in any more. Its access rules and quotas stay.", "Delete", name))) return;
    try {
      await send("DELETE", path`/users/${name}`);
      toast(`User ${name} is deleted.`);
      location.hash = "#/users";
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return [h("p", { class: "note" }, "API keys of the user go with it."), h("div", { class: "actions below" }, h("button", { type: "button", class: "danger", on: { click: drop } }, "Delete user"))];
}
