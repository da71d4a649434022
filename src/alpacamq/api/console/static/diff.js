// The difference of two texts, line by line, with unchanged lines folded.

import { h } from "./dom.js";

// The lines of both texts that are compared one by one, multiplied; beyond, all count as changed.
const MAX_PAIRS = 4_000_000;
const CONTEXT = 3;
const ROWS_AT_ONCE = 1000;

// A comma at the end of a line says only that a line follows.
const isSame = (one, other) => one === other || one?.replace(/,$/, "") === other?.replace(/,$/, "");

/** Return [[sign, line]]: "-" only in the old text, "+" only in the new one, " " in both. */
export function changes(oldText, newText) {
  const before = oldText.split("\n");
  const after = newText.split("\n");
  let start = 0;
  while (start < before.length && start < after.length && isSame(before[start], after[start])) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && isSame(before.at(-1 - end), after.at(-1 - end))) end += 1;
  const both = (lines) => lines.map((line) => [" ", line]);
  return [
    ...both(after.slice(0, start)),
    ...between(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...both(after.slice(after.length - end)),
  ];
}

/** The changes of texts with different first and last lines, by their longest common subsequence. */
function between(before, after) {
  const found = [];
  const width = after.length + 1;
  let one = 0;
  let other = 0;
  if (before.length * after.length <= MAX_PAIRS) {
    const lengths = new Uint32Array((before.length + 1) * width);
    for (let row = before.length - 1; row >= 0; row -= 1) {
      for (let column = after.length - 1; column >= 0; column -= 1) {
        const at = row * width + column;
        lengths[at] = isSame(before[row], after[column]) ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
      }
    }
    while (one < before.length && other < after.length) {
      const at = one * width + other;
      if (isSame(before[one], after[other])) {
        found.push([" ", after[other]]);
        one += 1;
        other += 1;
      } else if (lengths[at + width] >= lengths[at + 1]) found.push(["-", before[one++]]);
      else found.push(["+", after[other++]]);
    }
  }
  while (one < before.length) found.push(["-", before[one++]]);
  while (other < after.length) found.push(["+", after[other++]]);
  return found;
}

/** Show changes; unchanged lines that are far from a change are folded. */
export function diffView(rows) {
  const place = h("div", { class: "diff", role: "region", "aria-label": "Changes", tabindex: "0" });
  const isNear = new Uint8Array(rows.length);
  rows.forEach(([sign], at) => {
    if (sign !== " ") isNear.fill(1, Math.max(at - CONTEXT, 0), at + CONTEXT + 1);
  });
  const parts = [];
  for (let at = 0; at < rows.length; ) {
    let end = at;
    while (end < rows.length && isNear[end] === isNear[at]) end += 1;
    // Folding one line shows no less.
    if (isNear[at] || end - at === 1) for (const row of rows.slice(at, end)) parts.push(() => [line(row)]);
    else parts.push(((folded) => () => [fold(folded)])(rows.slice(at, end)));
    at = end;
  }
  let shown = 0;
  const more = () => {
    for (const part of parts.slice(shown, shown + ROWS_AT_ONCE)) place.append(...part());
    shown += ROWS_AT_ONCE;
    if (shown < parts.length) place.append(unfolding(`${parts.length - shown} more lines`, more));
  };
  more();
  return place;
}

const MARKS = { "-": ["removed", "Removed"], "+": ["added", "Added"], " ": ["same", null] };

function line([sign, text]) {
  const [tone, label] = MARKS[sign];
  return h("div", { class: `change ${tone}` }, h("span", { class: "sign", "aria-label": label, role: label ? "img" : null }, sign), h("code", null, text || " "));
}

function fold(rows) {
  return unfolding(`${rows.length.toLocaleString("en")} unchanged lines`, (button) => button.after(...rows.map(line)));
}

/** A button that is replaced by lines. */
function unfolding(label, unfold) {
  const click = (event) => {
    const pressed = event.currentTarget;
    unfold(pressed);
    pressed.remove();
  };
  return h("button", { type: "button", class: "quiet more", on: { click } }, label);
}
