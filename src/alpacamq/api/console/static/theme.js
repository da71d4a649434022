// Sets the theme before the first paint: that of the system, or the chosen one.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("alpacamq-theme");
  } catch {
    // Storage may be disabled; use the theme of the system.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
