// Suggestions for a search line: the qualifiers of a list, then the values of the qualifier that is being typed.
const field = document.querySelector("[data-suggest]");
const known = field ? JSON.parse(field.dataset.suggest) : {};
const list = document.createElement("ul");
let options = [];
let active = -1;

// The word at the cursor, and its start position.
function wordAt() {
  const before = field.value.slice(0, field.selectionStart);
  const start = before.search(/\S*$/);
  return [before.slice(start), start];
}

// The qualifiers, or the values of one qualifier, each as [inserted text, meaning].
function matches(word) {
  const colon = word.indexOf(":");
  if (colon < 0) {
    const names = Object.keys(known).filter((name) => name.startsWith(word.toLowerCase()));
    return names.map((name) => [`${name}:`, known[name].hint]);
  }
  const [name, typed] = [word.slice(0, colon).toLowerCase(), word.slice(colon + 1).toLowerCase()];
  const values = known[name]?.values ?? [];
  const close = values.filter(([value]) => value.toLowerCase().includes(typed) && value.toLowerCase() !== typed);
  return close.map(([value, hint]) => [`${name}:${value}`, hint]);
}

function close() {
  [options, active] = [[], -1];
  list.hidden = true;
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
}

function show() {
  options = matches(wordAt()[0]).slice(0, 12);
  if (!options.length) return close();
  active = -1;
  list.replaceChildren(...options.map(([text, hint], place) => {
    const option = document.createElement("li");
    Object.assign(option, { id: `suggestion-${place}`, role: "option" });
    const code = Object.assign(document.createElement("code"), { textContent: text });
    const small = Object.assign(document.createElement("small"), { textContent: hint });
    option.append(code, small);
    option.addEventListener("mousedown", (event) => {
      event.preventDefault();
      take(place);
    });
    return option;
  }));
  list.hidden = false;
  field.setAttribute("aria-expanded", "true");
  field.removeAttribute("aria-activedescendant");
}

function mark(place) {
  active = (place + options.length) % options.length;
  [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === active)));
  list.children[active].scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-activedescendant", `suggestion-${active}`);
}

// Replace the word by a suggestion. After a qualifier, suggest its values; after a value, start the next word.
function take(place) {
  const [word, start] = wordAt();
  const text = options[place][0];
  const inserted = text.endsWith(":") ? text : `${text} `;
  field.setRangeText(inserted, start, start + word.length, "end");
  text.endsWith(":") ? show() : close();
}

function press(event) {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (list.hidden) show();
    if (options.length) mark(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
  } else if (event.key === "Enter" && active >= 0) {
    event.preventDefault();
    take(active);
  } else if (event.key === "Escape" && !list.hidden) {
    event.stopPropagation();
    close();
  }
}

if (field) {
  field.type = "text";
  Object.assign(list, { id: "suggestions", role: "listbox", hidden: true, className: "suggestions" });
  list.setAttribute("aria-label", field.labels[0].textContent);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": "suggestions" })) {
    field.setAttribute(name, value);
  }
  field.after(list);
  field.addEventListener("input", show);
  field.addEventListener("focus", show);
  field.addEventListener("blur", close);
  field.addEventListener("keydown", press);
}
