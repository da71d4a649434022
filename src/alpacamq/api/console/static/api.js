// Requests to the broker. Distinguishes an unreachable broker from one that refuses a request.

const TIMEOUT_MS = 15000;

/** A problem document (RFC 9457) of the broker, or an error of its schema registry. */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.message || body?.title || `the broker answered ${status}`);
    this.status = status;
    this.type = body?.type ?? "";
    this.field = body?.field ?? "";
  }
}

/** The broker did not respond. */
export class Unreachable extends Error {}

/** Whether the last request reached the broker; dispatches "change" when that changes. */
export const connection = Object.assign(new EventTarget(), { isUp: null });

/**
 * Who the browser is logged in as; dispatches "change" when that changes. `csrfToken` proves to the broker that
 * a request is one of our pages', and not of another site's that makes use of the cookie.
 */
export const session = Object.assign(new EventTarget(), { user: null, csrfToken: null, isRequired: false, isAvailable: false });

function loggedIn({ user, csrf_token, is_required, is_available }) {
  Object.assign(session, { user, csrfToken: csrf_token, isRequired: is_required, isAvailable: is_available });
  session.dispatchEvent(new Event("change"));
}

/** Ask the broker who the browser is logged in as. */
export async function loadSession() {
  loggedIn(await get("/session"));
}

/** Log in with {user, password} or {key}. */
export async function logIn(credentials) {
  loggedIn(await send("POST", "/session", credentials));
}

export async function logOut() {
  await send("DELETE", "/session");
  await loadSession();
}

function seen(isUp) {
  if (connection.isUp === isUp) return;
  connection.isUp = isUp;
  connection.dispatchEvent(new Event("change"));
}

/** Return a path with escaped names: path`/topics/${topic}`. */
export function path(parts, ...names) {
  return parts.reduce((whole, part, at) => whole + encodeURIComponent(names[at - 1]) + part);
}

/** Ask for a value; `parse` reads the JSON of the answer. */
export function get(where, query = {}, signal = undefined, parse = JSON.parse) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return ask(text ? `${where}?${text}` : where, { signal, parse });
}

/** Like `get`, but returns null for 404. */
export async function find(where, query = {}, signal = undefined) {
  try {
    return await get(where, query, signal);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

/** Send a request; text is sent as it is, any other body as JSON. */
export function send(method, where, body) {
  const options = { method };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  return ask(where, options);
}

async function ask(where, options) {
  try {
    return await askOnce(where, options);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401 && where !== "/session") {
      // The session has ended.
      session.user = session.csrfToken = null;
      session.isRequired = session.isAvailable = true;
      session.dispatchEvent(new Event("change"));
    }
    if (!error.type.endsWith(":csrf-token-missing") && !isOfRegistry(error)) throw error;
    await loadSession(); // another tab has logged in again
    return askOnce(where, options);
  }
}

/** Whether the schema registry, whose errors have no types, misses the CSRF token. */
const isOfRegistry = ({ status, message }) => status === 403 && message.includes("X-CSRF-Token");

async function askOnce(where, { signal, parse = JSON.parse, headers = {}, ...options }) {
  const patience = AbortSignal.timeout(TIMEOUT_MS);
  let answer, text;
  try {
    answer = await fetch(where, {
      ...options,
      // Says that a script asks: the broker then leaves asking for a password to us.
      headers: { ...headers, "X-Requested-With": "console", ...(session.csrfToken && { "X-CSRF-Token": session.csrfToken }) },
      cache: "no-store",
      credentials: "same-origin",
      signal: signal ? AbortSignal.any([signal, patience]) : patience,
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    seen(false);
    throw new Unreachable("the broker cannot be reached");
  }
  seen(true);
  let body = null;
  try {
    body = text ? parse(text) : null;
  } catch {
    throw new Problem(answer.status, { detail: `the broker answered ${answer.status} with something that is no JSON` });
  }
  if (!answer.ok) throw new Problem(answer.status, body);
  return body;
}
