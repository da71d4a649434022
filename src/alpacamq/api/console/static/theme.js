// Light or dark, before anything is painted: as the system has it, or as was chosen here.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("alpacamq-theme");
  } catch {
    // Storage may be switched off; the system's choice is as good.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
