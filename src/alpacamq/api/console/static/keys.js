// Keyboard shortcuts: one letter, or g and then one.

import { h, show } from "./dom.js";
import { PAGES } from "./pages.js";

const SEQUENCE_MS = 1200;

export function listenToKeys() {
  let wentAt = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const isSecond = event.timeStamp - wentAt < SEQUENCE_MS;
    wentAt = -Infinity;
    if (isSecond) {
      const page = PAGES.find(({ key }) => key === event.key);
      if (page) {
        event.preventDefault();
        location.hash = page.href;
      }
    } else if (event.key === "g") {
      wentAt = event.timeStamp;
    } else if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search-text").focus();
    } else if (event.key === "?") {
      showKeys();
    } else if (event.key === "j" || event.key === "k") {
      step(event.key === "j" ? 1 : -1);
    }
  });
}

function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.nodeName);
}

/** Focus the next or previous link or button in the rows of the page. */
function step(by) {
  const stops = [...document.querySelectorAll("main tbody tr, main li.row")]
    .map((row) => row.querySelector("a, button, summary"))
    .filter(Boolean);
  if (!stops.length) return;
  const row = document.activeElement?.closest("tr, li.row");
  const here = stops.findIndex((stop) => row?.contains(stop));
  const next = here < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(Math.max(here + by, 0), stops.length - 1);
  stops[next].focus();
}

export function showKeys() {
  const keys = (...each) => each.map((key) => h("kbd", null, key));
  const pairs = [
    [keys("/"), "search"],
    [keys("j"), "next row"],
    [keys("k"), "previous row"],
    [keys("["), "earlier messages"],
    [keys("]"), "later messages"],
    [keys("?"), "this list"],
    ...PAGES.map(({ name, key }) => [keys("g", key), name.toLowerCase()]),
  ];
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "keys-title", on: { close: (event) => event.currentTarget.remove() } });
  show(
    dialog,
    h("h2", { id: "keys-title" }, "Keyboard"),
    h("dl", { class: "keys" }, pairs.map(([names, what]) => h("div", null, h("dt", null, names), h("dd", null, what)))),
    h("div", { class: "actions" }, h("button", { type: "button", autofocus: true, on: { click: () => dialog.close() } }, "Close")),
  );
  document.body.append(dialog);
  dialog.showModal();
}
