// A conversation that goes on: shows the answer as it is written, and fetches the page's part again at every commit.
"use strict";
(() => {
  const COMMITS = [
    "run.started", "run.resumed", "run.waiting", "run.paused", "run.steered", "step.completed",
    "approval.requested", "approval.decided", "tool.completed", "wait", "end",
  ];
  let stream = null;
  let box = null;
  let run;
  let timer = 0;
  let asking = 0;
  let step = 0;
  let written = "";
  let first = 0;
  let end = 0;

  const refresh = () => {
    if (timer || !box) return;
    timer = setTimeout(() => {
      timer = 0;
      htmx.ajax("GET", box.dataset.page, { target: "#conversation", select: "#conversation", swap: "morph:outerHTML" });
    }, 60);
  };

  const show = () => {
    const bubble = box?.querySelector("[data-writing]");
    if (!bubble) return;
    const near = innerHeight + scrollY > document.body.scrollHeight - 160;
    bubble.hidden = written === "";
    bubble.querySelector("[data-text]").textContent = written;
    if (near) scrollTo({ top: document.body.scrollHeight });
  };
  const now = (text) => {
    const line = box?.querySelector("[data-now]");
    if (line) line.textContent = text;
  };

  // Places in an answer count characters, not the halves of them that JavaScript counts.
  const write = (text, at) => {
    if (at === undefined || at === null) at = end;
    if (at > end) {
      written += " … ";
      first = at - [...written].length;
    } else if (at < end) written = [...written].slice(0, Math.max(0, at - first)).join("");
    written += text;
    end = at + [...text].length;
  };

  // A stream that broke comes back by itself, one that was refused does not: until it is there the page asks.
  const rest = () => {
    clearInterval(asking);
    asking = 0;
  };
  const ask = () => {
    refresh();
    if (box && stream?.readyState === EventSource.CLOSED) open();
  };

  const open = () => {
    stream = new EventSource(box.dataset.stream);
    stream.addEventListener("open", rest);
    stream.addEventListener("error", () => { if (!asking) asking = setInterval(ask, 3000); });
    stream.addEventListener("answer.delta", (event) => {
      const delta = JSON.parse(event.data);
      if (delta.step !== step) {
        step = delta.step;
        first = end = delta.at ?? 0;
        written = "";
      }
      write(delta.text, delta.at);
      show();
      now("Writing …");
    });
    stream.addEventListener("step.completed", (event) => {
      if (JSON.parse(event.data).step >= step) written = "";
    });
    stream.addEventListener("live.step_started", () => now("Working …"));
    for (const name of COMMITS) stream.addEventListener(name, refresh);
    stream.addEventListener("end", () => {
      stream.close();
      rest();
    });
  };

  // After a part was fetched the box may be another element, or gone; the stream of the same run goes on.
  const follow = () => {
    const found = document.querySelector("[data-stream]");
    const same = found && run === found.dataset.run;  // the box itself may have been changed in place
    box = found;
    run = found?.dataset.run;
    if (same) {
      show();
      return;
    }
    stream?.close();
    rest();
    written = "";
    step = 0;
    if (box) open();
  };

  document.addEventListener("DOMContentLoaded", follow);
  document.addEventListener("htmx:afterSettle", follow);
  addEventListener("pagehide", () => stream?.close());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("[data-enter]")) {
      event.preventDefault();
      event.target.form.requestSubmit();
    }
  });
})();
