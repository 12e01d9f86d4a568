// All clusters, and those that are set aside.
import { cardElement, facts, heading } from "./cards.js";
import { button, count, el, strip } from "./elements.js";
import { clusters, state } from "./state.js";

const PAGE = 48;
const asked = { find: "", order: "promise", show: "open", shown: PAGE };
const ORDERS = {
  promise: ["most promising", (c) => -(c.promise ?? Infinity)],
  size: ["largest", (c) => -c.size],
  confidence: ["most certain", (c) => -(c.confidence ?? 0)],
  name: ["by name", (c) => c.name || `\uffff${c.label}`],
  id: ["by number", (c) => c.id],
};
const FILTERS = {
  open: ["not ignored", (c) => !c.ignored],
  unnamed: ["unnamed", (c) => !c.name && !c.ignored],
  named: ["named", (c) => c.name && !c.ignored],
  ignored: ["ignored", (c) => c.ignored],
  doubtful: ["doubtful", (c) => c.doubtful > 0.5 && !c.ignored],
};

export function sorted(cards, order) {
  const by = ORDERS[order][1];
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return cards.sort((a, b) => compare(by(a), by(b)) || a.id - b.id);
}

function found() {
  const wanted = asked.find.trim().toLowerCase();
  const cards = clusters().filter(FILTERS[asked.show][1]);
  return sorted(cards.filter((c) => `${c.name || ""} ${c.label}`.toLowerCase().includes(wanted)), asked.order);
}

function select(name, choices, onchange) {
  const options = Object.entries(choices).map(([value, [words]]) =>
    el("option", { value, selected: asked[name] === value }, words));
  return el("select", { name, onchange: (event) => { asked[name] = event.target.value; asked.shown = PAGE; onchange(); } }, options);
}

export function grid(main) {
  const cards = el("div", { class: "cards", id: "cards" });
  const number = el("span", { class: "soft", id: "count" });
  const more = button("Show more", () => { asked.shown += PAGE; fill(); }, { id: "more" });
  const fill = () => {
    const all = found();
    number.textContent = `${all.length.toLocaleString("en")} of ${count(clusters().length, "cluster")}`;
    cards.replaceChildren(...all.slice(0, asked.shown).map(cardElement));
    more.hidden = all.length <= asked.shown;
  };
  const find = el("input", { name: "find", type: "search", value: asked.find, "data-key": "/", placeholder: "name or number", oninput: (event) => {
    Object.assign(asked, { find: event.target.value, shown: PAGE });
    fill();
  } });
  main.replaceChildren(
    el("div", { class: "controls" }, el("label", {}, "Find", find),
      el("label", {}, "Show", select("show", FILTERS, fill)),
      el("label", {}, "First", select("order", ORDERS, fill)), number),
    cards, el("div", { class: "actions" }, more));
  fill();
}

export function aside(main) {
  const places = [...state.cards.values()].filter((c) => c.id < 0 && c.size > 0).sort((a, b) => b.id - a.id);
  const ignored = sorted(clusters().filter((c) => c.ignored), "id");
  const section = (title, words, cards, draw) => el("section", {}, el("h2", {}, title), el("p", { class: "soft" }, cards.length ? words : "None."),
    el("div", { class: "cards" }, cards.map(draw)));
  main.replaceChildren(
    section("Ignored clusters", "They are no classes, and are not suggested again.", ignored, cardElement),
    section("Regions in no cluster", "Taken by a known class, or not an object.", places, (c) => el("article", { class: "card" }, heading(c), strip(c), facts(c))));
}
