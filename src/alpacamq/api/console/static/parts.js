// Components of pages.

import { session } from "./api.js";
import { h, show } from "./dom.js";
import * as format from "./format.js";

export function heading(title, ...beside) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, title), h("div", { class: "actions" }, beside));
}

/** Breadcrumbs: links to the parent pages, and the name of this one. */
export function trail(...steps) {
  const links = steps.map(([name, href]) => h("li", null, href ? h("a", { href }, name) : h("span", null, name)));
  return h("nav", { class: "trail", "aria-label": "Breadcrumbs" }, h("ol", null, links));
}

export function card(title, ...content) {
  return h("section", { class: "card" }, title ? h("h2", null, title) : null, content);
}

export function stat(label, value, { note = null, href = null, tone = null, chart = null } = {}) {
  const inside = [
    h("span", { class: "label" }, label),
    h("span", { class: `figure ${tone ?? ""}` }, value),
    note ? h("span", { class: "note" }, note) : null,
    chart,
  ];
  return href ? h("a", { class: "stat", href }, inside) : h("div", { class: "stat" }, inside);
}

export const stats = (...each) => h("div", { class: "stats" }, each);

/**
 * A table. A column is {label, cell(row), kind?: "number" | "name" | "wide"}; "wide" ones are left out
 * on narrow screens. There, each row of a stacked table is a block with a line for each column.
 */
export function table(columns, rows, { key, empty: nothing = "Nothing here yet.", label = "", isStacked = false } = {}) {
  if (!rows.length) return empty(nothing);
  const head = columns.map((column) => h("th", { scope: "col", class: column.kind }, column.label));
  const body = rows.map((row) =>
    h("tr", { "data-key": key?.(row) }, columns.map((column) => h("td", { class: column.kind, "data-label": isStacked ? column.label : null }, column.cell(row)))),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label || "Table" },
    h("table", { class: isStacked ? "stacked" : null }, h("thead", null, h("tr", null, head)), h("tbody", null, body)),
  );
}

export const empty = (...text) => h("p", { class: "empty" }, text);

export const badge = (text, tone = "") => h("span", { class: `badge ${tone}` }, text);

export function refused(error) {
  const who = error.status === 403 ? (session.user === null ? " You are not logged in." : ` You are logged in as ${session.user}.`) : null;
  return h("p", { class: "refused", role: "alert" }, error.message, who && !/[.]$/.test(error.message) ? "." : null, who);
}

/** What the reader has to know about the page, and is no error. */
export const notice = (...text) => h("p", { class: "notice", role: "note" }, text);

/** Names and values, one under the other. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

export function button(label, act, { tone = "", title = null, disabled = false } = {}) {
  const click = async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    try {
      await act();
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      pressed.disabled = false;
      // A button that is disabled loses the focus, so that a closed dialog cannot return it.
      if (document.activeElement === document.body) pressed.focus();
    }
  };
  return h("button", { type: "button", class: tone, title, disabled, on: { click } }, label);
}

/** A button that copies the text that `text` returns. */
export function copyButton(text, what = null) {
  const copy = async () => {
    // Browsers have no clipboard for pages of other machines without TLS.
    if (!navigator.clipboard) throw new Error("The browser copies only over HTTPS or from localhost: select the text instead.");
    await navigator.clipboard.writeText(text());
    toast("Copied.");
  };
  const made = button("Copy", copy, { tone: "quiet" });
  if (what) made.setAttribute("aria-label", `Copy the ${what}`);
  return made;
}

let fields = 0;

/** A labelled control. */
export function field(label, control, hint = null) {
  control.id ||= `field-${(fields += 1)}`;
  const hintId = hint ? `${control.id}-hint` : null;
  if (hintId) control.setAttribute("aria-describedby", hintId);
  return h(
    "div",
    { class: "field" },
    h("label", { for: control.id }, label),
    control,
    hint ? h("span", { class: "hint", id: hintId }, hint) : null,
  );
}

export function select(options, chosen, change = null) {
  const element = h(
    "select",
    { on: change ? { change: (event) => change(event.currentTarget.value) } : {} },
    options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)),
  );
  return element;
}

/** A group of buttons, one of which is selected. */
export function choice(label, options, chosen, change) {
  return h(
    "div",
    { class: "choice", role: "group", "aria-label": label },
    options.map(([value, name]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), on: { click: () => change(value) } }, name),
    ),
  );
}

/** A stacked bar: [[name, number, tone]]. */
export function bar(parts, whole) {
  const total = Math.max(whole ?? 0, parts.reduce((sum, [, number]) => sum + number, 0), 1);
  const text = parts.map(([name, number]) => `${name} ${format.count(number)}`).join(", ");
  return h(
    "div",
    { class: "bar", role: "img", "aria-label": text, title: text },
    parts.map(([name, number, tone]) =>
      h("span", { class: tone ?? name, style: { width: `${(100 * number) / total}%` } }),
    ),
  );
}

export function toast(text, tone = "good") {
  const note = h("p", { class: `toast ${tone}` }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), tone === "bad" ? 8000 : 4000);
}

/** Fields for names and values, to which rows can be added: {element, values()}; rows without a name do not count. */
export function pairs(legend, what, known = []) {
  const rows = h("div", { class: "pairs" });
  const list = h("datalist", { id: `known-${(fields += 1)}` }, known.map((name) => h("option", { value: name })));
  const add = () => {
    const name = h("input", { placeholder: "name", "aria-label": `Name of the ${what}`, autocomplete: "off", list: known.length ? list.id : null });
    const text = h("input", { placeholder: "value", "aria-label": `Value of the ${what}`, autocomplete: "off" });
    const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove the ${what}`, on: { click: () => pair.remove() } }, "✕");
    const pair = h("div", { class: "pair" }, name, text, remove);
    rows.append(pair);
    name.focus();
  };
  const element = h("fieldset", { class: "field" }, h("legend", null, legend), rows, list, h("button", { type: "button", class: "quiet", on: { click: add } }, `+ Add a ${what}`));
  const values = () => [...rows.children].map((pair) => [...pair.querySelectorAll("input")].map((input) => input.value)).filter(([name]) => name);
  return { element, values };
}

/** A form whose button runs `act` with its target; errors are shown below, and the fields keep their contents. */
export function form(label, act, ...content) {
  const problem = h("div");
  const submit = async (event) => {
    event.preventDefault();
    const pressed = event.currentTarget.querySelector("button.primary");
    pressed.disabled = true;
    try {
      show(problem);
      await act();
    } catch (error) {
      show(problem, refused(error));
    } finally {
      pressed.disabled = false;
    }
  };
  return h("form", { class: "produce", on: { submit } }, content, h("div", { class: "actions" }, h("button", { class: "primary" }, label)), problem);
}

/** Show a confirmation dialog, in which `typed` has to be typed if it is given; resolves to whether it was confirmed. */
export function confirm(question, detail, verb, typed = null) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
    const end = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    const act = h("button", { type: "button", class: "danger", disabled: typed !== null, on: { click: () => end(true) } }, verb);
    const check = (event) => {
      act.disabled = event.currentTarget.value !== typed;
    };
    show(
      dialog,
      h("h2", { id: "dialog-title" }, question),
      h("p", null, detail),
      typed === null ? null : field(`Type ${typed} to confirm`, h("input", { autocomplete: "off", spellcheck: "false", on: { input: check } })),
      h("div", { class: "actions" }, h("button", { type: "button", autofocus: true, on: { click: () => end(false) } }, "Keep"), act),
    );
    dialog.addEventListener("cancel", () => end(false));
    document.body.append(dialog);
    dialog.showModal();
  });
}
