// Finds a topic, a group, a subject or a page by a part of its name.

import { get } from "./api.js";
import { h, show } from "./dom.js";
import { toGroup, toSubject, toTopic } from "./links.js";
import { PAGES } from "./pages.js";

const SHOWN = 8;
const FRESH_MS = 5000;

export function offerSearch() {
  const input = document.getElementById("search-text");
  const list = document.getElementById("search-list");
  let places = [];
  let loadedAt = -Infinity;
  let found = [];
  let chosen = 0;

  async function load() {
    if (performance.now() - loadedAt < FRESH_MS) return;
    loadedAt = performance.now();
    try {
      const [{ topics }, { groups }, subjects] = await Promise.all([
        get("/topics", { limit: 5000 }),
        get("/groups", { limit: 5000 }),
        get("/schemas/subjects", { limit: 5000 }).catch(() => []), // the registry may be moving to another node
      ]);
      const names = [...new Set(groups.map(({ group }) => group))];
      places = [
        ...topics.map(({ name }) => ({ name, kind: "topic", href: toTopic(name) })),
        ...names.map((name) => ({ name, kind: "group", href: toGroup(name) })),
        ...subjects.map((name) => ({ name, kind: "schema", href: toSubject(name) })),
        ...PAGES.map(({ name, href }) => ({ name, kind: "page", href })),
      ];
      draw();
    } catch {
      loadedAt = -Infinity; // the banner says why
    }
  }

  function draw() {
    const wanted = input.value.trim().toLowerCase();
    found = wanted ? places.filter(({ name }) => name.toLowerCase().includes(wanted)) : [];
    found.sort((one, other) => rank(one, wanted) - rank(other, wanted));
    found = found.slice(0, SHOWN);
    chosen = Math.min(chosen, Math.max(found.length - 1, 0));
    list.hidden = !wanted || document.activeElement !== input;
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (found.length) input.setAttribute("aria-activedescendant", `found-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
    show(list, found.length ? found.map(option) : h("li", { class: "note" }, "No match."));
  }

  function option({ name, kind, href }, place) {
    // Before click, which fires after the input has lost focus and the list is closed.
    const press = (event) => {
      event.preventDefault();
      go(href);
    };
    return h(
      "li",
      { role: "option", id: `found-${place}`, "aria-selected": String(place === chosen), on: { mousedown: press } },
      h("span", null, name),
      h("span", { class: "note" }, kind),
    );
  }

  function go(href) {
    input.value = "";
    input.blur();
    location.hash = href;
  }

  input.addEventListener("focus", () => {
    load();
    draw();
  });
  input.addEventListener("blur", draw);
  input.addEventListener("input", () => {
    chosen = 0;
    load();
    draw();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      input.value = "";
      input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.min(Math.max(chosen + (event.key === "ArrowDown" ? 1 : -1), 0), Math.max(found.length - 1, 0));
      draw();
    }
  });
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    if (found[chosen]) go(found[chosen].href);
  });
}

function rank({ name }, wanted) {
  const lower = name.toLowerCase();
  return lower === wanted ? 0 : lower.startsWith(wanted) ? 1 : 2;
}
