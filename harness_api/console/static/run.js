// A run's page while it is open: told by server-sent events, or asked for every few seconds when these fail.
"use strict";
(() => {
  const place = document.querySelector("[data-run-live]");
  if (!place) return;
  let due = 0, step = 0, chars = [], polling = 0;

  const refresh = () => {
    if (due) return;
    due = setTimeout(() => { due = 0; document.body.dispatchEvent(new Event("live")); }, 250);
  };
  const tokens = () => document.getElementById("tokens");
  const show = () => {
    const area = tokens();
    if (area) area.textContent = (chars.length && !(0 in chars) ? "… " : "") + chars.join("");
  };

  // Places in an answer count characters, not the halves of them that JavaScript counts. What is told again is
  // written over; what was missed stays a gap.
  const delta = (item) => {
    if (item.step !== step) { step = item.step; chars = []; }
    chars.length = item.at ?? chars.length;
    chars = chars.concat([...String(item.text ?? "")]);
    show();
  };

  // A browser opens few connections to one host: a tab that nobody looks at gives its own back.
  let source = null, over = false;
  const listen = () => {
    source = new EventSource(place.dataset.runLive);
    source.addEventListener("open", () => { clearInterval(polling); polling = 0; });
    source.addEventListener("changed", refresh);
    source.addEventListener("begun", refresh);
    source.addEventListener("delta", (event) => delta(JSON.parse(event.data)));
    source.addEventListener("end", () => { over = true; rest(); refresh(); });
    source.addEventListener("error", () => { if (!polling) polling = setInterval(refresh, 3000); });
  };
  const rest = () => { source?.close(); source = null; clearInterval(polling); polling = 0; };
  const look = () => {
    if (document.visibilityState === "hidden" || over) rest();
    else if (!source) listen();
  };
  document.addEventListener("visibilitychange", look);
  look();

  document.body.addEventListener("htmx:afterSettle", () => {
    const row = document.getElementById("under-way");
    if (row && Number(row.dataset.step) > step) { chars = []; show(); }
  });
})();
