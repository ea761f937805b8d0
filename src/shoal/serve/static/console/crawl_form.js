// The form for a new crawl. Fields are checked while they are filled in, and the preview is shown on the same page.
const form = document.querySelector("form[data-check]");
const panel = document.getElementById("preview");
const touched = new Set();
let timer = 0;
let latest = 0;

function fields(action) {
  const values = new URLSearchParams(new FormData(form));
  values.set("action", action);
  return values;
}

async function ask(action) {
  const answer = await fetch(form.dataset.check, { method: "POST", body: fields(action) });
  return answer.ok ? answer.json() : null;
}

function show(problems, all) {
  for (const place of form.querySelectorAll("[data-problem]")) {
    const name = place.dataset.problem;
    const text = all || touched.has(name) ? problems[name] ?? "" : "";
    place.textContent = text;
    const field = form.elements[name];
    if (text) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

async function check() {
  const mine = ++latest;
  const answer = await ask("check");
  if (answer && mine === latest) show(answer.problems, false);
}

form.addEventListener("input", (event) => {
  touched.add(event.target.name);
  clearTimeout(timer);
  timer = setTimeout(check, 300);
});

form.querySelector("[data-preview]").addEventListener("click", async (event) => {
  event.preventDefault();
  const wait = document.createElement("p");
  wait.className = "hint";
  wait.textContent = panel.dataset.wait;
  panel.replaceChildren(wait);
  const answer = await ask("preview");
  if (!answer) return form.requestSubmit(event.target);
  show(answer.problems, true);
  const parsed = new DOMParser().parseFromString(answer.preview, "text/html");
  panel.replaceChildren(...parsed.body.childNodes);
});
