// Polls the broker while the page is visible.

import { connection, Problem, Unreachable } from "./api.js";
import { show } from "./dom.js";
import { badge, refused } from "./parts.js";

const INTERVAL_MS = 2000;
const RETRY_MS = 1000;

/** The lifetime of a page: its polling and listeners end with it. */
export class View {
  #ending = new AbortController();
  #wakes = new Set();

  constructor(main) {
    this.main = main;
    document.addEventListener("visibilitychange", () => this.#seen(), { signal: this.signal });
    window.addEventListener("online", () => this.#seen(), { signal: this.signal });
  }

  get signal() {
    return this.#ending.signal;
  }

  end() {
    this.#ending.abort();
    this.#seen();
  }

  /** Keep choices in the address of the page, so that it can be shared and comes back; empty ones are left out. */
  keep(choices) {
    if (this.signal.aborted) return;
    const [path, search = ""] = location.hash.split("?", 2);
    const query = new URLSearchParams(search);
    for (const [name, value] of Object.entries(choices)) {
      if (value === "" || value === null || value === false) query.delete(name);
      else query.set(name, value);
    }
    window.history.replaceState(window.history.state, "", query.size ? `${path}?${query}` : path || "#/");
  }

  /** Show in `place`, which holds the health of what the page shows, that it is unknown while the broker is unreachable. */
  unknownWhenUnreachable(place) {
    const lost = () => connection.isUp === false && show(place, badge("unknown", "bad"));
    connection.addEventListener("change", lost, { signal: this.signal });
  }

  #seen() {
    for (const wake of this.#wakes) wake();
  }

  /**
   * Draw the result of `load` into `place`, now and `every` so many milliseconds while the page is visible.
   * Elements in `actions` are hidden as long as what they act on does not exist.
   * Returns a function that reloads immediately.
   */
  live(place, load, draw, { every = INTERVAL_MS, actions = [] } = {}) {
    for (const each of actions) each.hidden = true;
    let wake = () => {};
    const sleep = (ms) =>
      new Promise((resolve) => {
        const timer = ms === null ? null : setTimeout(resolve, ms);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    const wakeUp = () => wake();
    this.#wakes.add(wakeUp);
    place.setAttribute("aria-busy", "true");
    const again = async () => {
      while (!this.signal.aborted) {
        if (document.hidden) {
          await sleep(null);
          continue;
        }
        const isShown = await this.#look(place, load, draw, actions);
        await sleep(isShown ? (typeof every === "function" ? every() : every) : RETRY_MS);
      }
      this.#wakes.delete(wakeUp);
    };
    again();
    return wakeUp;
  }

  /** Draw the result of `load` into `place` once: forms, whose fields must not change while they are filled in. */
  async once(place, load, draw) {
    place.setAttribute("aria-busy", "true");
    try {
      const found = await load(this.signal);
      if (this.signal.aborted) return;
      place.replaceChildren(); // fields of before are not patched
      show(place, draw(found));
    } catch (error) {
      if (this.signal.aborted) return;
      show(place, refused(error));
    }
    place.removeAttribute("aria-busy");
  }

  async #look(place, load, draw, actions) {
    try {
      const found = await load(this.signal);
      if (this.signal.aborted) return true;
      const drawn = draw(found);
      show(place, drawn);
      for (const each of actions) each.hidden = false;
      place.removeAttribute("aria-busy");
    } catch (error) {
      if (this.signal.aborted) return true;
      if (error instanceof Unreachable) return false; // the banner reports it; the page keeps its contents
      if (!(error instanceof Problem)) console.error(error);
      show(place, refused(error));
      if (error.status === 404) for (const each of actions) each.hidden = true;
      place.removeAttribute("aria-busy");
    }
    return true;
  }
}
