// What the page does beyond htmx: answers as they stream, files that are dropped, two keys, and problems in words.
"use strict";
const at = (id) => document.getElementById(id);

function say(text) {
  at("message").textContent = text;
  at("message").hidden = !text;
}

// Tables that are wider than the screen can be scrolled with the keyboard, too.
function makeReachable() {
  for (const part of document.querySelectorAll("main div")) {
    if (part.scrollWidth > part.clientWidth && getComputedStyle(part).overflowX === "auto") part.tabIndex = 0;
  }
}

async function problemOf(response) {
  try { return (await response.json()).detail; } catch { return `the service answered ${response.status}`; }
}

// Server-sent events of a POST, which EventSource cannot send.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (left + value).split("\n\n");
    left = parts.pop();
    for (const part of parts) {
      const [, name, data] = part.match(/^event: (.*)\ndata: (.*)$/s) || [];
      if (name) yield [name, JSON.parse(data)];
    }
  }
}

async function ask(form) {
  const asking = new AbortController();
  const [text, card, status, stop, button] = [at("text"), at("card"), at("status"), at("stop"), form.querySelector("button")];
  text.textContent = ""; text.hidden = false; card.replaceChildren(); say("");
  status.textContent = "Looking for passages …"; button.disabled = true; stop.hidden = false;
  stop.onclick = () => asking.abort();
  try {
    const response = await fetch(form.action, {
      method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "text/event-stream" }, signal: asking.signal,
    });
    if (!response.ok) throw new Error(await problemOf(response));
    for await (const [name, data] of eventsOf(response)) {
      if (name === "piece") { text.textContent += data; status.textContent = "Writing …"; }
      if (name === "error") throw new Error(data.detail);
      if (name === "card") {
        card.innerHTML = data;  // drawn by the server, which escapes whatever comes from outside
        htmx.process(card); text.hidden = true; status.textContent = "The answer is complete."; makeReachable();
      }
    }
  } catch (err) {
    status.textContent = "";
    say(err.name === "AbortError" ? "Stopped." : err.message);
  } finally {
    button.disabled = false; stop.hidden = true;
  }
}

async function upload(form, files) {
  for (const file of files) {
    const line = document.createElement("li");
    line.textContent = `${file.name}: sending …`;
    at("uploads").append(line);
    const body = new FormData();
    body.append("file", file); body.append("index", form.elements.index.value);
    try {
      const response = await fetch("/v1/documents", { method: "POST", body });
      line.textContent = `${file.name}: ${response.ok ? "received" : await problemOf(response)}`;
    } catch { line.textContent = `${file.name}: the service cannot be reached`; }
    htmx.ajax("GET", "/documents/rows", "#rows");
  }
}

document.addEventListener("submit", (event) => {
  if (event.target.id === "ask") { event.preventDefault(); ask(event.target); }
  if (event.target.id === "upload") { event.preventDefault(); upload(event.target, event.target.elements.file.files); event.target.elements.file.value = ""; }
});
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  const query = at("query");
  if (query && event.key === "/" && !typing) { event.preventDefault(); query.focus(); }
  if (event.target === query && event.key === "Enter" && (event.ctrlKey || event.metaKey)) query.form.requestSubmit();
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    const form = event.target.closest && event.target.closest(".drop");
    if (!form) return;
    event.preventDefault();
    form.classList.toggle("over", kind === "dragover");
    if (kind === "drop") upload(form, event.dataTransfer.files);
  });
}
for (const kind of ["DOMContentLoaded", "htmx:afterSwap"]) document.addEventListener(kind, makeReachable);
window.addEventListener("resize", makeReachable);
document.addEventListener("htmx:responseError", (event) => {
  try { say(JSON.parse(event.detail.xhr.responseText).detail); } catch { say(`the service answered ${event.detail.xhr.status}`); }
});
document.addEventListener("htmx:sendError", () => say("the service cannot be reached"));
document.addEventListener("htmx:beforeRequest", () => say(""));
