// The form that is shown in place of a page as long as its reader has to log in.

import { logIn } from "./api.js";
import { h, show } from "./dom.js";
import { card, choice, field, heading, refused } from "./parts.js";

const WAYS = [
  ["password", "Password"],
  ["key", "API key"],
];

export function logInForm(view) {
  const user = h("input", { name: "username", required: true, autocomplete: "username", autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", required: true, autocomplete: "current-password" });
  const key = h("input", { type: "password", required: true, autocomplete: "off", placeholder: "amq_…" });
  const fields = h("div", { class: "stack" });
  const ways = h("div");
  const result = h("div", { "aria-live": "polite" });
  let way = "password";

  function choose(chosen) {
    way = chosen;
    show(ways, choice("Log in with", WAYS, way, choose));
    fields.replaceChildren(...(way === "key" ? [field("API key", key)] : [field("User", user), field("Password", password)]));
    (way === "key" ? key : user).focus();
  }

  async function submit(event) {
    event.preventDefault();
    const press = event.currentTarget.querySelector("button.primary");
    press.disabled = true;
    try {
      await logIn(way === "key" ? { key: key.value } : { user: user.value, password: password.value });
    } catch (error) {
      show(result, refused(error));
      const again = way === "key" ? key : password;
      again.value = "";
      again.focus();
    } finally {
      press.disabled = false;
    }
  }

  show(
    view.main,
    heading("Log in"),
    card(
      null,
      h("form", { class: "log-in stack", on: { submit } }, ways, fields, h("div", { class: "actions" }, h("button", { class: "primary" }, "Log in")), result),
    ),
  );
  choose(way);
}
