// Keeps the list of crawls fresh: once a second while the tab is seen. All wording is the server's; whatever comes
// from there is put in place as text, never as markup.

const EVERY_MS = 1000;
const AFTER_FAILURE_MS = 4000;

const body = document.getElementById("rows");
const blank = document.getElementById("row").content.firstElementChild;
let timer = 0;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // an unchanged cell keeps its selection
}

function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function webAddress(text) {
  return text !== null && /^https?:\/\//i.test(text) ? text : null;
}

function fill(element, row) {
  element.dataset.id = row.id;
  for (const cell of element.querySelectorAll("[data-cell]")) setText(cell, row[cell.dataset.cell]);
  const cell = (name) => element.querySelector(`[data-cell="${name}"]`);
  setAttribute(cell("seed"), "href", webAddress(row.link));
  setAttribute(cell("id"), "href", `/api/v1/crawls/${encodeURIComponent(row.id)}`);
  setAttribute(cell("badge"), "data-state", row.state);
  setAttribute(cell("started"), "title", row.started_exact);
  setAttribute(cell("started"), "datetime", row.started_iso);
}

function show(answer) {
  const old = new Map(Array.from(body.children, (element) => [element.dataset.id, element]));
  answer.rows.forEach((row, place) => {
    const element = old.get(row.id) ?? document.importNode(blank, true);
    old.delete(row.id);
    fill(element, row);
    if (body.children[place] !== element) body.insertBefore(element, body.children[place] ?? null);
  });
  for (const element of old.values()) element.remove();
  setText(document.getElementById("summary"), answer.summary);
  document.getElementById("crawls").hidden = answer.rows.length === 0;
  document.getElementById("empty").hidden = answer.rows.length > 0 || location.search !== "";
  const older = document.getElementById("older");
  older.hidden = answer.older === null;
  setAttribute(older, "href", answer.older === null ? null : `/?after=${answer.older}`);
}

function tell(state, text) {
  document.getElementById("live").dataset.state = state;
  setText(document.getElementById("live-text"), text);
}

async function ask() {
  const response = await fetch(`/console/crawls${location.search}`, { signal: AbortSignal.timeout(10_000) });
  if (response.status === 401) location.assign("/login"); // the token ended meanwhile
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

async function refresh() {
  let wait = EVERY_MS;
  try {
    show(await ask());
    tell("fresh", "Live");
  } catch {
    wait = AFTER_FAILURE_MS;
    tell("stale", "No response, retrying");
  }
  plan(wait);
}

function plan(wait) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, wait);
}

document.addEventListener("visibilitychange", () => plan(0));
plan(EVERY_MS);
