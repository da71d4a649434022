// Follows the end of a topic: new messages appear on top.

import { get, path } from "./api.js";
import { h, show } from "./dom.js";
import { parseExactly } from "./exact.js";
import * as format from "./format.js";
import { messageList } from "./message_list.js";

const EVERY_MS = 1000;
// Per request, and so each second.
const LIMIT = 500;
const SHOWN = 500;

/** Show in `place` what arrives in these partitions from now on; with a filter, what matches it. */
export function tail(view, topic, parts, filter, place) {
  let next = Object.fromEntries(parts.map((part) => [part.partition, part.end_offset]));
  let found = [];
  let received = 0;
  let matching = 0;
  let skipped = 0;
  let isPaused = false;
  const pause = () => {
    isPaused = !isPaused;
    again();
  };
  const clear = () => {
    found = [];
    again();
  };
  const load = async (signal) => {
    if (isPaused) return;
    const offsets = Object.entries(next).map(([part, offset]) => `${part}:${offset}`).join(",");
    const asked = { offsets, limit: LIMIT, decode: true };
    const answer = filter
      ? await get(path`/topics/${topic}/messages/find`, { ...asked, filter }, signal, parseExactly)
      : await get(path`/topics/${topic}/messages`, asked, signal, parseExactly);
    next = answer.next_offsets;
    received += filter ? answer.looked_at : answer.messages.length;
    matching += answer.messages.length;
    const latest = answer.messages.toReversed();
    // A search answers partition by partition.
    if (filter) latest.sort((one, other) => other.timestamp - one.timestamp);
    found = [...latest, ...found].slice(0, SHOWN);
    skipped += catchUp(answer.end_offsets, parts.length);
  };
  /** Go on near the end if more arrives than can be shown; return the number of messages left out. */
  const catchUp = (ends, count) => {
    const behind = Object.entries(ends).reduce((sum, [part, end]) => sum + end - next[part], 0);
    if (behind <= 2 * LIMIT) return 0;
    const share = Math.floor(LIMIT / count);
    const before = next;
    next = Object.fromEntries(Object.entries(ends).map(([part, end]) => [part, Math.max(before[part], end - share)]));
    return Object.entries(next).reduce((sum, [part, offset]) => sum + offset - before[part], 0);
  };
  const counts = () => [
    `${format.count(received)} received`,
    filter ? `, ${format.count(matching)} match` : "",
    skipped ? `, ${format.count(skipped)} left out: more arrives than can be shown` : "",
    matching > SHOWN ? `; the last ${SHOWN} are shown` : "",
  ];
  const draw = () => [
    h(
      "div",
      { class: "split" },
      h("span", { class: "note", role: "status" }, isPaused ? "Paused. " : "Live. ", counts()),
      h("span", { class: "actions" }, h("button", { type: "button", "aria-pressed": String(isPaused), on: { click: pause } }, isPaused ? "Resume" : "Pause"), h("button", { type: "button", on: { click: clear } }, "Clear")),
    ),
    messageList(topic, found, { nothing: filter ? "Waiting for new messages that match." : "Waiting for new messages." }),
  ];
  const again = view.live(place, load, draw, { every: EVERY_MS });
}
