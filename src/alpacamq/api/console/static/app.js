// The frame around the pages: routing, menu, banner and theme.

import { connection, loadSession, logOut, session } from "./api.js";
import { h, show } from "./dom.js";
import { listenToKeys, showKeys } from "./keys.js";
import { View } from "./live.js";
import { logInForm } from "./login.js";
import { PAGES, pageAt } from "./pages.js";
import { empty, heading, toast } from "./parts.js";
import { offerSearch } from "./search.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
let view = null;
// The user whose data is on the page.
let shownFor = null;
// Whether a login was asked for where none is required.
let wantsLogin = false;

function open() {
  view?.end();
  view = new View(main);
  main.replaceChildren();
  closeMenu();
  document.body.classList.toggle("locked", isLocked());
  if (isLocked()) {
    document.title = "Log in · AlpacaMQ";
    logInForm(view);
    return;
  }
  const { page, names, query, section } = pageAt(location.hash);
  drawNav(section);
  let title = "Not found";
  if (page) title = page(view, names, query);
  else show(main, heading(title), empty("Page not found. ", h("a", { href: "#/" }, "Back to the overview")));
  document.title = `${title} · AlpacaMQ`;
  main.querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function drawNav(section) {
  const links = PAGES.map(({ name, href, key, begins }) => [
    begins ? h("li", { class: "part", role: "presentation" }, begins) : null,
    h("li", null, h("a", { href, "aria-current": name === section ? "page" : null, "aria-keyshortcuts": `g ${key}` }, name)),
  ]);
  show(nav, h("ul", null, links), account());
}

/** Who is logged in, for the menu of narrow screens, whose header has no room for it. */
function account() {
  if (!session.isAvailable) return null;
  const label = session.user === null ? "Log in" : "Log out";
  return h("p", { class: "account" }, session.user === null ? null : h("span", { class: "who" }, session.user), h("button", { type: "button", on: { click: switchSession } }, label));
}

/** Whether nothing can be shown without a login. */
function isLocked() {
  return wantsLogin || (session.isRequired && session.user === null);
}

function drawSession() {
  const button = document.getElementById("session");
  button.hidden = !session.isAvailable || isLocked();
  button.textContent = session.user === null ? "Log in" : "Log out";
  button.title = session.user === null ? "" : `Logged in as ${session.user}`;
  const who = document.getElementById("who");
  who.hidden = session.user === null || isLocked();
  who.textContent = session.user ?? "";
  who.title = button.title;
}

function sessionChanged() {
  const wasLocked = document.body.classList.contains("locked");
  if (session.user !== null) wantsLogin = false;
  drawSession();
  if (view && (isLocked() !== wasLocked || session.user !== shownFor)) open();
  shownFor = session.user;
}

async function switchSession() {
  if (session.user === null) {
    wantsLogin = true;
    drawSession();
    open();
    return;
  }
  try {
    await logOut();
  } catch (error) {
    toast(error.message, "bad");
  }
}

function closeMenu() {
  document.body.classList.remove("menu-open");
  menu.setAttribute("aria-expanded", "false");
}

function drawConnection() {
  const pulse = document.getElementById("pulse");
  const banner = document.getElementById("banner");
  const isLost = connection.isUp === false;
  banner.hidden = !isLost;
  banner.textContent = isLost ? `The broker at ${location.host} is unreachable. Retrying.` : "";
  pulse.className = `pulse ${isLost ? "down" : connection.isUp ? "up" : ""}`;
  pulse.textContent = isLost ? "offline" : connection.isUp ? "live" : "connecting";
}

const THEMES = { auto: "◐", light: "☀", dark: "☾" };

function drawTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const button = document.getElementById("theme");
  button.textContent = THEMES[now];
  button.title = `Colours: ${now === "auto" ? "system" : now}`;
  button.setAttribute("aria-label", `${button.title}. Change`);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("alpacamq-theme", next);
  } catch {
    // The choice is not stored.
  }
  drawTheme();
}

menu.addEventListener("click", () => {
  const isOpen = document.body.classList.toggle("menu-open");
  menu.setAttribute("aria-expanded", String(isOpen));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment of the address names the page
  main.focus();
});
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("keys").addEventListener("click", showKeys);
document.getElementById("session").addEventListener("click", switchSession);
connection.addEventListener("change", drawConnection);
session.addEventListener("change", sessionChanged);
window.addEventListener("hashchange", open);

drawTheme();
listenToKeys();
offerSearch();
try {
  await loadSession();
} catch {
  // The pages say what is wrong.
}
open();
