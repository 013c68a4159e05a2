// What pages need beyond HTMX: the theme, the menu, keys, questions before changes, and live runs.
"use strict";
(() => {
  const root = document.documentElement;
  const on = (type, selector, handle) =>
    document.addEventListener(type, (event) => {
      const found = event.target instanceof Element && event.target.closest(selector);
      if (found) handle(found, event);
    });

  on("click", "[data-theme-toggle]", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("harness-theme", root.dataset.theme); } catch { /* for this page only */ }
  });

  on("click", "[data-menu]", (button) => {
    const open = document.body.classList.toggle("menu-open");
    button.setAttribute("aria-expanded", String(open));
  });

  on("submit", "form[data-confirm]", (form, event) => {
    if (!window.confirm(form.dataset.confirm)) event.preventDefault();
  });
  on("click", "[data-all]", (box) => {
    for (const other of document.querySelectorAll(`input[name="${box.dataset.all}"]`)) other.checked = box.checked;
  });
  on("change", "[data-submit]", (field) => field.form.requestSubmit());
  on("click", "[data-copy]", async (button) => {
    await navigator.clipboard.writeText(button.dataset.copy);
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  });

  // Keys: "/" finds, "g" and a letter goes to a page, "?" is left to the browser.
  const places = { o: "/console", r: "/console/runs", s: "/console/sessions", a: "/console/approvals", w: "/console/workers" };
  let going = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape") document.body.classList.remove("menu-open");
    if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      document.querySelector("[data-find]")?.focus();
    } else if (event.key === "g") {
      going = Date.now();
    } else if (Date.now() - going < 1000 && places[event.key]) {
      if (document.querySelector(`.side a[href="${places[event.key]}"]`)) location.assign(places[event.key]);
    }
  });

  // Lists that refresh themselves while somebody looks at them.
  setInterval(() => {
    if (document.visibilityState !== "visible") return;
    for (const list of document.querySelectorAll("[data-poll]")) list.dispatchEvent(new Event("poll"));
  }, 5000);

  // What was answered may stand above what is in view.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.matches("#notices, #made")) event.detail.target.scrollIntoView({ block: "nearest" });
  });

  // A live refresh must not close what a person has opened, nor take away what was typed.
  if (window.Idiomorph) {
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.tagName === "DETAILS") && !(name === "checked" && node.tagName === "INPUT");
    Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !node.hasAttribute?.("data-keep");
    Idiomorph.defaults.ignoreActiveValue = true;
  }
})();
