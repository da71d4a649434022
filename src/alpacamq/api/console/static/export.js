// Saves messages as a file: JSON lines as `alpacactl consume -o json` prints them, or CSV.

import { get, path } from "./api.js";
import { h, show } from "./dom.js";
import * as format from "./format.js";
import { refused } from "./parts.js";

const LIMIT = 1000;
// Of a file: the browser holds it in memory.
const MAX_MESSAGES = 100_000;
const MAX_CHARACTERS = 64 << 20;
const COLUMNS = ["topic", "partition", "offset", "timestamp_ms", "time", "key", "key_base64", "value", "value_base64", "headers"];
const FORMS = {
  jsonl: { label: "JSON lines", type: "application/jsonl", head: "", line: (record) => JSON.stringify(record) },
  csv: { label: "CSV", type: "text/csv", head: `${COLUMNS.join(",")}\r\n`, line: csvLine },
};

/**
 * Buttons that save the messages of a topic from `starts`, offsets by partition, to what is its end now.
 * `search` holds the parameters of a search; without it all messages are saved.
 */
export function exporter(topic, starts, search, signal) {
  const state = h("span", { class: "note", role: "status" });
  const problem = h("div");
  const place = h("div", { class: "split" });
  const save = async (form) => {
    const stopping = new AbortController();
    const stop = h("button", { type: "button", class: "quiet", on: { click: () => stopping.abort() } }, "Stop");
    show(problem);
    show(place, state, stop);
    try {
      const { parts, count, isWhole } = await collect(topic, starts, search, FORMS[form], AbortSignal.any([signal, stopping.signal]), (done) => show(state, `${format.count(done)} messages…`));
      download(new Blob(parts, { type: FORMS[form].type }), `${topic}.${form}`);
      show(state, `${format.count(count)} messages saved${isWhole ? "." : ", the most of one file. Go on from the page after the last of them."}`);
    } catch (error) {
      if (!stopping.signal.aborted && !signal.aborted) show(problem, refused(error));
      show(state);
    }
    rest();
  };
  const rest = () => show(place, h("span", { class: "actions" }, h("span", { class: "note" }, "Export from here on as"), Object.entries(FORMS).map(([form, { label }]) => h("button", { type: "button", class: "quiet", on: { click: () => save(form) } }, label))), state);
  rest();
  return h("div", { "data-still": "export" }, place, problem);
}

async function collect(topic, starts, search, { head, line }, signal, report) {
  const where = search ? path`/topics/${topic}/messages/find` : path`/topics/${topic}/messages`;
  const parts = [head];
  let next = starts;
  let ends = null;
  let count = 0;
  let characters = 0;
  while (Object.keys(next).length) {
    const offsets = Object.entries(next).map(([part, offset]) => `${part}:${offset}`).join(",");
    const answer = await get(where, { ...search, offsets, limit: LIMIT }, signal);
    ends ??= answer.end_offsets;
    for (const message of answer.messages) {
      if (message.offset >= ends[message.partition]) continue;
      if (count === MAX_MESSAGES || characters > MAX_CHARACTERS) return { parts, count, isWhole: false };
      const text = `${line(record(topic, message))}\n`;
      characters += text.length;
      count += 1;
      parts.push(text);
    }
    report(count);
    next = Object.fromEntries(Object.entries(answer.next_offsets).filter(([part, offset]) => offset < ends[part]));
  }
  return { parts, count, isWhole: true };
}

function record(topic, { partition, offset, timestamp, headers, ...message }) {
  const pairs = Array.isArray(headers) ? headers : Object.entries(headers ?? {});
  const bytes = (name) => (message[`${name}_base64`] === undefined ? { [name]: message[name] ?? null } : { [`${name}_base64`]: message[`${name}_base64`] });
  return {
    topic,
    partition,
    offset,
    timestamp_ms: timestamp,
    time: timeOf(timestamp),
    ...bytes("key"),
    ...bytes("value"),
    headers: pairs.map(([name, value]) => ({ name, ...(value?.base64 === undefined ? { value } : { value_base64: value.base64 }) })),
  };
}

function timeOf(timestamp) {
  const date = new Date(timestamp);
  return timestamp < 0 || Number.isNaN(date.getTime()) ? null : date.toISOString().replace("Z", "+00:00");
}

function csvLine(record) {
  return `${COLUMNS.map((name) => csvCell(name === "headers" ? JSON.stringify(record.headers) : record[name])).join(",")}\r`;
}

/** Quote a value, and keep spreadsheets from taking it for a formula: messages are not to be trusted. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
