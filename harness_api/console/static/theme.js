// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("harness-theme"); } catch { /* no storage: the system's theme */ }
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
})();
