// Creates elements, and patches a page without losing focus, scroll position or selection.
// Data from the broker becomes text nodes or attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "text"]);
const listeners = new WeakMap();

/** Create an element. `on` holds listeners by event; properties that are null, undefined or false are left out. */
export function h(tag, properties, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") listen(element, value);
    else if (name === "value" && "value" in element && tag !== "option" && tag !== "progress") element.value = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Dispatch an event to the current listeners of an element, which patching may have replaced. */
function listen(element, byEvent) {
  const known = listeners.get(element) ?? {};
  for (const event of Object.keys(byEvent)) {
    if (!(event in known)) element.addEventListener(event, dispatch);
  }
  listeners.set(element, { ...known, ...byEvent });
}

function dispatch(event) {
  return listeners.get(event.currentTarget)?.[event.type]?.(event);
}

/** Replace the contents of `element` by `children` with minimal changes. */
export function show(element, ...children) {
  const wanted = document.createElement("div");
  append(wanted, children);
  patchChildren(element, wanted);
}

function patch(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  const still = old.dataset.still;
  for (const { name } of [...old.attributes]) {
    // The reader controls whether an existing element is open.
    if (!wanted.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === "open" && old.nodeName === "DETAILS") continue;
    // As a property: the content security policy forbids style attributes.
    if (name === "style") old.style.cssText = wanted.style.cssText;
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const heard = listeners.get(wanted);
  if (heard) listen(old, heard);
  if (old.nodeName === "TEXTAREA" || old.nodeName === "INPUT") return;
  if (old.nodeName === "SELECT") return patchSelect(old, wanted);
  // Elements marked as still are expanded by the reader and not patched.
  if (wanted.dataset.still && wanted.dataset.still === still) return;
  patchChildren(old, wanted);
}

function patchSelect(old, wanted) {
  const chosen = old.value;
  patchChildren(old, wanted);
  if ([...old.options].some((option) => option.value === chosen)) old.value = chosen;
}

function patchChildren(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    let match = key ? keyed.get(key) : null;
    if (!key && place && place.nodeName === next.nodeName && !place.dataset?.key) match = place;
    if (match && match.nodeName === next.nodeName) {
      if (match !== place) old.insertBefore(match, place);
      else place = place.nextSibling;
      patch(match, next);
    } else {
      old.insertBefore(next, place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}
