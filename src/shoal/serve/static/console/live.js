// The live regions of a page. One stream per tab carries the HTML of regions that changed and new log lines; it is
// closed while the tab is hidden. Regions are patched in place, so that focus, selection and scroll position are kept.
const feed = document.body.dataset.feed;
const live = document.querySelector(".live");
const liveText = document.querySelector("[data-live-text]");
const token = document.querySelector(".preferences [name=csrf]").value;
const MOST_LINES = 1000;
const RETRY = 5000; // milliseconds
let stream = null;
let lastLine = "";

function setState(state) {
  live.hidden = false;
  live.dataset.state = state;
  liveText.textContent = liveText.dataset[state];
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.id ?? node.id : "";
}

function copyAttributes(from, to) {
  for (const { name } of [...to.attributes]) {
    if (!from.hasAttribute(name) && name !== "open") to.removeAttribute(name);
  }
  for (const { name, value } of from.attributes) {
    if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  }
}

function patch(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (to.nodeValue !== from.nodeValue) to.nodeValue = from.nodeValue;
    return;
  }
  if (to.isEqualNode(from)) return;
  copyAttributes(from, to);
  patchChildren(from, to);
}

function patchChildren(from, to) {
  const keyed = new Map();
  for (const child of to.childNodes) {
    if (keyOf(child)) keyed.set(keyOf(child), child);
  }
  let place = to.firstChild;
  for (const wanted of [...from.childNodes]) {
    const key = keyOf(wanted);
    let found = key ? keyed.get(key) : place;
    while (!key && found && keyOf(found)) found = found.nextSibling;
    if (found && found.nodeType === wanted.nodeType && found.nodeName === wanted.nodeName) {
      if (found !== place) to.insertBefore(found, place);
      patch(wanted, found);
      place = found.nextSibling;
    } else {
      to.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function parsed(html) {
  return new DOMParser().parseFromString(`<body><template>${html}</template>`, "text/html").querySelector("template").content;
}

function onRegion(event) {
  const { name, hash, html } = JSON.parse(event.data);
  const region = document.querySelector(`[data-region="${name}"]`);
  if (!region) return;
  const fresh = parsed(html);
  for (const field of fresh.querySelectorAll("[data-csrf]")) field.setAttribute("value", token);
  patchChildren(fresh, region);
  region.dataset.hash = hash;
  document.dispatchEvent(new CustomEvent("shoal:patched"));
}

function onRows(event) {
  const { name, hash, rows } = JSON.parse(event.data);
  const region = document.querySelector(`[data-region="${name}"]`);
  if (!region) return;
  for (const [id, html] of Object.entries(rows)) {
    const row = region.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
    if (row) patch(parsed(html).firstElementChild, row);
  }
  region.dataset.hash = hash;
  document.dispatchEvent(new CustomEvent("shoal:patched"));
}

function onLine(event) {
  lastLine = event.lastEventId;
  const log = document.querySelector("[data-log]");
  if (!log) return;
  const follow = document.querySelector("[data-follow]")?.checked ?? true;
  log.append(...parsed(JSON.parse(event.data).html).childNodes);
  log.querySelector("[data-empty]")?.remove();
  while (log.children.length > MOST_LINES) log.firstElementChild.remove();
  document.dispatchEvent(new CustomEvent("shoal:line"));
  if (follow) log.scrollTop = log.scrollHeight;
}

function open() {
  if (stream || document.hidden) return;
  const regions = [...document.querySelectorAll("[data-region]")];
  const address = new URL(feed, location.href);
  address.searchParams.set("seen", regions.map((one) => `${one.dataset.region}-${one.dataset.hash}`).join(","));
  lastLine ||= document.querySelector("[data-log] li:last-child")?.dataset.id ?? "";
  if (lastLine) address.searchParams.set("line", lastLine);
  stream = new EventSource(address);
  stream.addEventListener("open", () => setState("on"));
  stream.addEventListener("region", onRegion);
  stream.addEventListener("rows", onRows);
  stream.addEventListener("line", onLine);
  stream.addEventListener("error", () => {
    setState("off");
    if (stream?.readyState === EventSource.CLOSED) {
      stream = null;
      setTimeout(again, RETRY);
    }
  });
}

// The server ended the stream permanently. If the session is over, reload the page, which redirects to the login;
// otherwise, open the stream once more.
async function again() {
  try {
    const answer = await fetch(location.href, { redirect: "manual", headers: { Accept: "text/html" } });
    if (answer.type === "opaqueredirect") location.reload();
  } catch {
    // The server cannot be reached.
  }
  open();
}

function close() {
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);

// The log filter hides lines that do not contain the typed text.
const filter = document.querySelector("[data-log-filter]");
function filterLines() {
  const wanted = filter.value.toLowerCase();
  for (const line of document.querySelectorAll("[data-log] li")) {
    line.hidden = wanted !== "" && !line.textContent.toLowerCase().includes(wanted);
  }
}
if (filter) {
  filter.addEventListener("input", filterLines);
  document.addEventListener("shoal:line", filterLines);
}
const log = document.querySelector("[data-log]");
if (log) log.scrollTop = log.scrollHeight;
open();
