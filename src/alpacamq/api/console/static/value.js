// Shows the contents of a message as a JSON tree, as text, or as bytes. Contents are untrusted: they
// become text nodes only, and are expanded step by step, so that a huge or deep value costs only what is shown.

import { h, show } from "./dom.js";
import { Exact, parseExactly } from "./exact.js";
import { choice, copyButton } from "./parts.js";

const CHILDREN_AT_ONCE = 100;
// Of objects and arrays by "Expand all"; the rest is expanded by another press.
const EXPANDED_AT_ONCE = 500;
const TEXT_AT_ONCE = 20000;
const BYTES_AT_ONCE = 1024;

/** Return the content of a field `name`, or of `name_base64` if it is not text. */
export function content(message, name) {
  if (message[`${name}_base64`] !== undefined) return { bytes: decoded(message[`${name}_base64`]), text: null };
  const text = message[name];
  if (text === null || text === undefined) return { bytes: null, text: null };
  return { bytes: new TextEncoder().encode(text), text };
}

export function decoded(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Summarise a key or value in one line. */
export function inline({ bytes, text }) {
  if (text !== null) return text;
  if (bytes === null) return null;
  return [...bytes.slice(0, 24)].map(hex).join(" ") + (bytes.length > 24 ? " …" : "");
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

/** Show the whole value in all its forms, first as its schema has it. `still` identifies the message. */
export function viewer({ bytes, text }, still, decodedValue = undefined) {
  const place = h("div", { class: "value", "data-still": still });
  if (bytes === null) {
    show(place, h("p", { class: "empty" }, "null: a tombstone, which deletes its key in a compacted topic"));
    return place;
  }
  const parsed = text === null ? undefined : parse(text);
  const forms = [];
  if (decodedValue !== undefined) forms.push(["decoded", "Decoded", () => tree(decodedValue)]);
  if (parsed !== undefined) forms.push(["json", "JSON", () => tree(parsed)]);
  if (text !== null) forms.push(["text", "Text", () => inParts(text)]);
  forms.push(["hex", "Hex", () => dump(bytes)]);
  const choose = (form) => {
    const [, , make] = forms.find(([name]) => name === form);
    const whole = () => (form === "decoded" ? JSON.stringify(decodedValue, null, 2) : (text ?? [...bytes].map(hex).join("")));
    const copy = copyButton(whole);
    const made = make();
    const isTree = made.classList.contains("json") && made.querySelector("details") !== null;
    place.replaceChildren(
      h("div", { class: "tools" }, choice("Show as", forms.map(([name, label]) => [name, label]), form, choose), h("span", { class: "note" }, `${bytes.length.toLocaleString("en")} bytes`), copy, isTree ? expansion(made) : null),
      made,
    );
  };
  choose(forms[0][0]);
  return place;
}

/** Show a text that is no message. */
export function textView(text, still) {
  const copy = copyButton(() => text);
  return h("div", { class: "value", "data-still": still }, h("div", { class: "tools" }, copy), inParts(text));
}

/** Parse a text if it is a JSON object or array. */
function parse(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return parseExactly(text);
  } catch {
    return undefined; // not JSON, or nested too deeply for the browser: shown as text
  }
}

/** Buttons that expand and collapse a whole tree. */
function expansion(tree) {
  const expand = () => {
    let left = EXPANDED_AT_ONCE;
    for (let closed; left > 0 && (closed = tree.querySelectorAll("details:not([open])")).length; ) {
      for (const each of [...closed].slice(0, left)) unfold.get(each)();
      left -= closed.length;
    }
  };
  const collapse = () => {
    for (const each of tree.querySelectorAll("details details[open]")) each.open = false;
  };
  return [
    h("button", { type: "button", class: "quiet", on: { click: expand } }, "Expand all"),
    h("button", { type: "button", class: "quiet", on: { click: collapse } }, "Collapse"),
  ];
}

// Opens a node of a tree, with its members.
const unfold = new WeakMap();

function tree(value) {
  return h("div", { class: "json" }, node(null, value, true));
}

function node(name, value, isOpen) {
  const label = name === null ? null : [h("span", { class: "name" }, name), ": "];
  if (value === null || typeof value !== "object" || value instanceof Exact) return h("div", { class: "leaf" }, label, leaf(value));
  const entries = Array.isArray(value) ? value.map((each, place) => [String(place), each]) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("div", { class: "leaf" }, label, open + close);
  const inside = h("div", { class: "inside" });
  let shown = 0;
  const more = () => {
    for (const [key, each] of entries.slice(shown, shown + CHILDREN_AT_ONCE)) inside.append(node(key, each, false));
    shown += CHILDREN_AT_ONCE;
    if (shown < entries.length) inside.append(rest(`${entries.length - shown} more`, more));
  };
  const toggled = (event) => {
    if (event.currentTarget.open && !shown) more();
  };
  if (isOpen) more();
  const element = h(
    "details",
    { open: isOpen, on: { toggle: toggled } },
    h("summary", null, label, open, h("span", { class: "note" }, ` ${entries.length} `), close),
    inside,
  );
  unfold.set(element, () => {
    if (!shown) more();
    element.open = true;
  });
  return element;
}

function leaf(value) {
  if (value instanceof Exact) return h("span", { class: "number" }, value.source);
  if (typeof value === "string") return h("span", { class: "string" }, JSON.stringify(value));
  return h("span", { class: value === null ? "nothing" : typeof value }, String(value));
}

function inParts(text) {
  const place = h("pre", { class: "text" });
  let shown = 0;
  const more = () => {
    place.append(text.slice(shown, shown + TEXT_AT_ONCE));
    shown += TEXT_AT_ONCE;
    if (shown < text.length) place.append(rest("Show more", more));
  };
  more();
  return place;
}

function dump(bytes) {
  const place = h("pre", { class: "hex" });
  let shown = 0;
  const more = () => {
    const lines = [];
    const end = Math.min(shown + BYTES_AT_ONCE, bytes.length);
    for (let at = shown; at < end; at += 16) {
      const row = [...bytes.slice(at, Math.min(at + 16, end))];
      const letters = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
      lines.push(`${at.toString(16).padStart(6, "0")}  ${row.map(hex).join(" ").padEnd(47)}  ${letters}\n`);
    }
    place.append(lines.join(""));
    shown = end;
    if (shown < bytes.length) place.append(rest(`${(bytes.length - shown).toLocaleString("en")} more bytes`, more));
  };
  more();
  return place;
}

/** A button that is replaced by the rest of the items. */
function rest(label, more) {
  const click = (event) => {
    event.currentTarget.remove();
    more();
  };
  return h("button", { type: "button", class: "quiet more", on: { click } }, label);
}
