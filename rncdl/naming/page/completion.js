// Fields in which names complete as one types: the classes that are there, known ones among them.
import { el } from "./elements.js";
import { names, plain, state } from "./state.js";

const SHOWN = 8;
let made = 0;

// Names that have in them what was typed, those that begin with it first.
function matching(text) {
  const wanted = plain(text);
  const found = names().filter((name) => plain(name).includes(wanted));
  return found.sort((a, b) => plain(b).startsWith(wanted) - plain(a).startsWith(wanted)).slice(0, SHOWN);
}

function option(name, id) {
  const kind = state.known.includes(name) ? el("span", { class: "soft" }, "known") : null;
  return el("li", { role: "option", id, "data-name": name, "aria-selected": "false" }, name, kind);
}

// To choose a name is to send the form that the field is in.
export function nameField(properties) {
  made += 1;
  const id = `names-${made}`;
  const list = el("ul", { role: "listbox", id, class: "names", hidden: true, "aria-label": "Names" });
  const input = el("input", { role: "combobox", autocomplete: "off", maxlength: 100, "aria-autocomplete": "list", "aria-controls": id, ...properties });
  let active = -1;
  const mark = () => {
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.setAttribute("aria-activedescendant", list.children[active]?.id || "");
    for (const [i, one] of [...list.children].entries()) one.setAttribute("aria-selected", String(i === active));
    list.children[active]?.scrollIntoView({ block: "nearest" });
  };
  const show = (found) => {
    active = -1;
    list.replaceChildren(...found.map((name, i) => option(name, `${id}-${i}`)));
    list.hidden = !found.length;
    mark();
  };
  const go = (step) => {
    if (list.hidden) show(matching(input.value));
    const number = list.children.length;
    if (number) active = active < 0 && step < 0 ? number - 1 : (active + step + number) % number;
    mark();
  };
  const choose = (chosen) => {
    input.value = chosen.dataset.name;
    show([]);
    input.form.requestSubmit();
  };
  input.addEventListener("input", () => show(input.value.trim() ? matching(input.value) : []));
  input.addEventListener("blur", () => show([]));
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") go(1);
    else if (event.key === "ArrowUp") go(-1);
    else if (event.key === "Enter" && active >= 0) choose(list.children[active]);
    else if (event.key === "Escape" && !list.hidden) show([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the keyboard
  list.addEventListener("click", (event) => { const chosen = event.target.closest("li"); if (chosen) choose(chosen); });
  mark();
  return { input, field: el("div", { class: "completing" }, input, list) };
}
