// Messages as lines that expand to their contents.

import { h, show } from "./dom.js";
import * as format from "./format.js";
import { toMessages, toSubject, toTraces } from "./links.js";
import { empty, facts, table } from "./parts.js";
import { content, decoded, inline, viewer } from "./value.js";

const SHORT_KEY = 200;
const REASON = "alpacamq-dead-letter-reason";
const DEAD_LETTER = {
  [REASON]: "Reason",
  "alpacamq-origin-topic": "From topic",
  "alpacamq-origin-partition": "From partition",
  "alpacamq-origin-offset": "From offset",
  "alpacamq-origin-group": "Dead-lettered by group",
  "alpacamq-delivery-count": "Deliveries",
};

/** `open` is the position, PARTITION/OFFSET, of a message that is expanded initially. */
export function messageList(topic, messages, { nothing = "No messages.", open = null } = {}) {
  if (!messages.length) return empty(nothing);
  return h("ol", { class: "messages" }, messages.map((message) => line(topic, message, open)));
}

const headersOf = ({ headers }) => (Array.isArray(headers) ? headers : Object.entries(headers ?? {}));
const placeOf = (message) => `${message.partition}/${message.offset}`;

function line(topic, message, open) {
  const place = placeOf(message);
  const still = `${topic}/${place}`;
  const body = h("div", { class: "unfolded", "data-still": still });
  const unfold = (event) => {
    const inside = event.currentTarget.querySelector(".unfolded");
    if (event.currentTarget.open && !inside.firstChild) show(inside, whole(topic, message, still));
  };
  const isOpen = open === place;
  if (isOpen) show(body, whole(topic, message, still));
  const key = summary(message, "key");
  const value = summary(message, "value");
  const reason = headersOf(message).find(([name]) => name === REASON)?.[1];
  return h(
    "li",
    { class: "row", "data-key": still },
    h(
      "details",
      { open: isOpen, on: { toggle: unfold } },
      h(
        "summary",
        null,
        h("span", { class: "place" }, h("span", { class: "note" }, "p"), message.partition, h("span", { class: "note" }, " @"), message.offset),
        h("time", null, format.timestamp(message.timestamp)),
        h("span", { class: "key" }, key === null ? h("span", { class: "note" }, "no key") : format.excerpt(key, 40)),
        h("span", { class: "excerpt" }, typeof reason === "string" && reason ? h("span", { class: "reason" }, format.excerpt(reason, 60)) : null, value === null ? h("span", { class: "note" }, "null") : format.excerpt(value, 160)),
      ),
      body,
    ),
  );
}

/** Summarise a key or value in one line, decoded if it names a schema. */
function summary(message, part) {
  const found = message[`${part}_decoded`]?.value;
  if (found === undefined) return inline(content(message, part));
  return typeof found === "string" ? found : JSON.stringify(found);
}

/** The schema that a key or value names, and why it could not be decoded by it. */
function schemaOf(found) {
  if (!found) return null;
  const { schema, error } = found;
  return h(
    "p",
    { class: "schema" },
    schema ? ["Schema ", h("a", { href: toSubject(schema.subject, { version: schema.version }) }, `${schema.subject}, version ${schema.version}`), h("span", { class: "note" }, ` ${schema.type}, id ${schema.id}`)] : null,
    error ? h("span", { class: "reason" }, ` Not decoded: ${error}`) : null,
  );
}

function whole(topic, message, still) {
  const headers = headersOf(message);
  const why = headers.filter(([name]) => Object.hasOwn(DEAD_LETTER, name)).map(([name, value]) => [DEAD_LETTER[name], shown(value)]);
  const key = content(message, "key");
  const { key_decoded: keyDecoded, value_decoded: valueDecoded } = message;
  const isShort = key.text !== null && key.text.length <= SHORT_KEY && !keyDecoded;
  return [
    why.length ? facts(why) : null,
    isShort ? facts([["Key", h("code", null, key.text)]]) : null,
    h("h3", null, "Value"),
    schemaOf(valueDecoded),
    viewer(content(message, "value"), `${still}/value`, valueDecoded?.value),
    key.bytes === null || isShort ? null : [h("h3", null, "Key"), schemaOf(keyDecoded), viewer(key, `${still}/key`, keyDecoded?.value)],
    headers.length
      ? [
          h("h3", null, "Headers"),
          table(
            [
              { label: "Name", kind: "name", cell: ([name]) => name },
              { label: "Value", cell: ([, value]) => h("code", null, shown(value)) },
            ],
            headers,
            { label: "Headers" },
          ),
        ]
      : null,
    h(
      "p",
      { class: "chips" },
      h("a", { href: toMessages(topic, { partition: message.partition, by: "offset", at: message.offset, open: placeOf(message) }) }, "Link to this message"),
      h("a", { href: toTraces({ topic, partition: message.partition, offset: message.offset }) }, "Trace"),
      key.text === null ? null : h("a", { href: toMessages(topic, { by: "key", at: key.text }) }, "Messages with this key"),
    ),
  ];
}

function shown(header) {
  if (header === null) return "null";
  return typeof header === "string" ? header : inline({ bytes: decoded(header.base64), text: null });
}
