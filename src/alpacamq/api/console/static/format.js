// Formats numbers, sizes, durations and timestamps.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const some = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–";

export const count = (number) => (number === null || number === undefined ? NONE : whole.format(number));

/** Format a number briefly. */
export function brief(number) {
  if (number === null || number === undefined) return NONE;
  return Math.abs(number) < 10000 ? whole.format(number) : compact.format(number);
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return NONE;
  if (perSecond === 0) return "0/s";
  if (perSecond < 0.1) return "<0.1/s";
  return perSecond < 100 ? `${some.format(perSecond)}/s` : `${brief(Math.round(perSecond))}/s`;
}

export function bytes(size) {
  if (size === null || size === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? whole.format(size) : some.format(size)} ${units[unit]}`;
}

/** Format a duration in its one or two largest units. */
export function span(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${some.format(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ].filter(([number]) => number > 0);
  return parts.slice(0, 2).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

/** Format a timestamp in local time: 2026-01-31 12:00:00.123. */
export function timestamp(ms) {
  if (ms === null || ms === undefined || ms < 0) return NONE;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  return (
    `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ` +
    `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`
  );
}

export function clock(ms) {
  const date = new Date(ms);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function ago(ms) {
  const since = Date.now() - ms;
  return since < 1000 ? "just now" : `${span(since)} ago`;
}

/** Return the start of a text on one line. */
export function excerpt(text, length = 120) {
  const line = text.slice(0, 4 * length).replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length)}…` : line;
}
