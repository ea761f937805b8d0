// Keyboard, dialogs, theme and selection. Every page works without this script; the script only saves steps.
const root = document.documentElement;
root.classList.add("scripted");

// Theme: applied immediately, and stored in the cookie that the server reads.
const themes = ["system", "light", "dark"];
const choice = document.querySelector("[data-theme-choice]");

function setTheme(theme) {
  root.dataset.theme = theme;
  document.querySelector("meta[name=color-scheme]").content = theme === "system" ? "light dark" : theme;
  document.cookie = `shoal_view=${theme}.${root.lang}; path=/; max-age=31536000; samesite=lax`;
  if (choice) choice.value = theme;
}

choice?.addEventListener("change", () => setTheme(choice.value));
for (const field of document.querySelectorAll("[data-submit]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}

// On a narrow screen the navigation and the tabs scroll: bring the current entry into view.
for (const current of document.querySelectorAll(".side nav [aria-current], .tabs [aria-current]")) {
  current.scrollIntoView({ block: "nearest", inline: "center" });
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(source);
    await navigator.clipboard?.writeText(source.textContent); // the clipboard is missing without TLS; then the user can copy the selected text
    if (navigator.clipboard) button.textContent = button.dataset.copied;
  });
}

// Dialogs
const help = document.getElementById("help");
document.querySelector("[data-help]")?.addEventListener("click", () => help.showModal());

const confirmation = document.getElementById("confirm");
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.confirm || event.target.dataset.confirmed) return;
  event.preventDefault();
  document.getElementById("confirm-question").textContent = button.dataset.confirm;
  document.getElementById("confirm-explanation").textContent = button.dataset.explanation ?? "";
  document.getElementById("confirm-yes").textContent = button.textContent;
  confirmation.returnValue = "no";
  confirmation.onclose = () => {
    if (confirmation.returnValue !== "yes") return;
    const field = document.createElement("input");
    Object.assign(field, { type: "hidden", name: "confirmed", value: "yes" });
    event.target.append(field);
    event.target.dataset.confirmed = "yes";
    event.target.requestSubmit(button);
  };
  confirmation.showModal();
});

// Keyboard
function isTyping(target) {
  return target.closest("input:not([type=checkbox]), textarea, select, dialog[open]") !== null;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && event.target.matches("input, textarea")) event.target.blur();
  if (isTyping(event.target)) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === "?") {
    event.preventDefault();
    help.showModal();
  } else if (event.key === "t") {
    setTheme(themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length]);
  } else if (/^[a-z]$/.test(event.key)) {
    document.querySelector(`a[data-key="${event.key}"]`)?.click();
  }
});

// Selection in lists: the action bar shows the number of selected rows.
function countSelection(form) {
  const boxes = [...form.querySelectorAll("input[name=id]")];
  const selected = boxes.filter((box) => box.checked).length;
  const all = form.querySelector("[data-select-all]");
  if (all) {
    all.checked = boxes.length > 0 && selected === boxes.length;
    all.indeterminate = selected > 0 && selected < boxes.length;
  }
  const bar = form.querySelector("[data-bulk]");
  if (bar) bar.dataset.selected = selected;
  const text = form.querySelector("[data-selected-text]");
  if (text) text.textContent = text.dataset.selectedText.replace("{count}", selected);
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-selection]");
  if (!form) return;
  if (event.target.matches("[data-select-all]")) {
    for (const box of form.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
  }
  countSelection(form);
});
for (const form of document.querySelectorAll("form[data-selection]")) countSelection(form);
document.addEventListener("shoal:patched", () => {
  for (const form of document.querySelectorAll("form[data-selection]")) countSelection(form);
});

// A click anywhere in a row opens the row's link.
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-href]");
  if (!row || event.target.closest("a, button, input, label, summary") || getSelection().toString()) return;
  row.querySelector("a[data-open]")?.click();
});
