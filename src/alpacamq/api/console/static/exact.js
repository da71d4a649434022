// JSON with numbers as they are written, and texts of schemas. JavaScript would round long numbers.

/** A number that JavaScript would round, in its original form. */
export class Exact {
  constructor(source) {
    this.source = source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : this.source;
  }
}

const same = (number, source) => String(number) === source || (!Number.isInteger(number) && source.length < 17);

/** Parse JSON; throws as JSON.parse does. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) => {
    const isRounded = typeof value === "number" && context?.source !== undefined && !same(value, context.source);
    return isRounded ? new Exact(context.source) : value;
  });
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g;
const WIDTH = 90;
const MAX_DEPTH = 200;

/**
 * Return JSON with one member or item per line, and short ones together on a line; the text itself if it is not
 * JSON. Works on the text: the order of members and the form of numbers stay.
 */
export function indented(text) {
  try {
    JSON.parse(text);
    const tokens = text.match(TOKENS).values();
    return printed(parsed(tokens.next().value, tokens, 0), 0, 0);
  } catch {
    return text; // not JSON, or nested too deeply
  }
}

/** Return a scalar as it is written, or {open, close, members: [[name, value]], length}. */
function parsed(token, tokens, depth) {
  if (token !== "{" && token !== "[") return token;
  if (depth > MAX_DEPTH) throw new RangeError("nested too deeply");
  const found = { open: token, close: token === "{" ? "}" : "]", members: [], length: 2 };
  for (let next = tokens.next().value; next !== found.close; next = tokens.next().value) {
    if (next === ",") continue;
    let name = "";
    if (token === "{") {
      name = `${next}: `;
      tokens.next(); // the colon
      next = tokens.next().value;
    }
    const value = parsed(next, tokens, depth + 1);
    found.members.push([name, value]);
    found.length += name.length + value.length + 2;
  }
  return found;
}

function printed(value, depth, used) {
  if (typeof value === "string") return value;
  const { open, close, members, length } = value;
  if (!members.length) return open + close;
  if (2 * depth + used + length <= WIDTH) return open + members.map(([name, each]) => name + printed(each, 0, -WIDTH)).join(", ") + close;
  const inside = "  ".repeat(depth + 1);
  const lines = members.map(([name, each]) => inside + name + printed(each, depth + 1, name.length));
  return `${open}\n${lines.join(",\n")}\n${"  ".repeat(depth)}${close}`;
}
