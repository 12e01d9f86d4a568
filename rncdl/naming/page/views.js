import { confirmMerge, giveName, showPhotograph } from "./dialogs.js";
import { count, el, key, strip, thumbnail } from "./elements.js";
import { ask, classOf, clusters, decide, state } from "./state.js";

const PAGE = 48;
const MEMBERS = 200;
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

function sorted(cards, order) {
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
  return el("select", { name, onchange: (event) => { asked[name] = event.target.value; asked.shown = PAGE; onchange(); } }, ...options);
}

function nameForm(card, after = () => {}) {
  const input = el("input", { name: "name", list: "names", autocomplete: "off", maxlength: 100, placeholder: "What are they?", "aria-label": `Name of ${card.label}`, value: card.name || "" });
  return el("form", { onsubmit: async (event) => {
    event.preventDefault();
    if (await giveName(card, input.value)) after();
  } }, input, el("button", {}, "Name"));
}

function heading(card, level = "h3") {
  const kind = state.known.includes(card.name) ? "name known" : "name";
  const title = card.name ? el("span", { class: kind }, card.name) : card.label;
  return el(level, {}, el("a", { href: `#/place/${card.id}` }, title));
}

function facts(card) {
  const others = card.name ? classOf(card.name).length - (card.ignored ? 0 : 1) : 0;
  const words = [count(card.size, "region")];
  if (card.name) words.unshift(card.label);
  if (others > 0) words.push(`one class with ${count(others, "other")}`);
  if (card.ignored) words.push("ignored");
  return el("span", { class: "soft" }, words.join(" · "));
}

const ignoreButton = (card) => el("button", { type: "button", class: "ignore", onclick: () =>
  decide("ignore", { cluster: card.id, ignored: !card.ignored }) }, card.ignored ? "No longer ignore" : "Ignore");

function cardElement(card) {
  return el("article", { class: card.ignored ? "card ignored" : "card", id: card.label },
    heading(card), strip(card), facts(card), nameForm(card), el("div", {}, ignoreButton(card)));
}

export function grid(main) {
  const cards = el("div", { class: "cards", id: "cards" });
  const number = el("span", { class: "soft", id: "count" });
  const more = el("button", { type: "button", id: "more", onclick: () => { asked.shown += PAGE; fill(); } }, "Show more");
  const fill = () => {
    const all = found();
    number.textContent = `${all.length.toLocaleString("en")} of ${count(clusters().length, "cluster")}`;
    cards.replaceChildren(...all.slice(0, asked.shown).map(cardElement));
    more.hidden = all.length <= asked.shown;
  };
  main.replaceChildren(
    el("div", { class: "controls" },
      el("label", {}, "Find", el("input", { name: "find", type: "search", value: asked.find, oninput: (event) => { asked.find = event.target.value; asked.shown = PAGE; fill(); } })),
      el("label", {}, "Show", select("show", FILTERS, fill)),
      el("label", {}, "First", select("order", ORDERS, fill)), number),
    cards, el("div", { class: "actions" }, more));
  fill();
}

function sameCandidates(card, after = () => {}) {
  const near = [...(card.near || []), card.known].map((id) => state.cards.get(id));
  const open = near.filter((other) => other && other.size > 0 && !other.ignored && (!card.name || card.name !== (other.name || other.label)));
  if (!open.length) return null;
  return el("section", {}, el("h3", {}, "The same?"), el("div", { class: "same" }, ...open.map((other, i) =>
    el("div", { class: "card" }, heading(other), strip(other, 4), facts(other),
      el("button", { type: "button", class: "same-as", onclick: async () => { if (await confirmMerge(card, other)) after(); } }, "Same as this ", key(String(i + 1)))))));
}

// One cluster large. What was passed over is gone through again with "back".
const queue = { past: [], current: null };

export function oneByOne(main) {
  const waiting = sorted(clusters().filter((c) => !c.looked_at && !c.ignored), "promise");
  let card = queue.current === null ? undefined : state.cards.get(queue.current);
  if (!card || !card.size) card = waiting[0];
  if (!card) {
    main.replaceChildren(el("h2", {}, "All clusters are looked at."), el("p", {}, el("a", { href: "#/" }, "Back to the grid")));
    return;
  }
  queue.current = card.id;
  const next = () => {
    queue.past.push(card.id);
    queue.current = null;
    oneByOne(main);
  };
  const actions = {
    i: async () => { if (await decide("ignore", { cluster: card.id, ignored: true })) next(); },
    s: async () => { if (await decide("skip", { cluster: card.id })) next(); },
    b: () => { if (queue.past.length) { queue.current = queue.past.pop(); oneByOne(main); } },
    n: () => main.querySelector("input[name=name]").focus(),
  };
  const button = (letter, words) => el("button", { type: "button", "data-key": letter, onclick: actions[letter] }, words, " ", key(letter));
  main.replaceChildren(el("article", { class: "large", id: "one", "data-cluster": card.id },
    heading(card, "h2"), facts(card), strip(card),
    el("div", { class: "actions" }, nameForm(card, next), button("n", "Type a name"), button("i", "Ignore"), button("s", "Skip"), button("b", "Back"), el("span", { class: "soft" }, `${waiting.length} to go`)),
    sameCandidates(card, next)));
}

export function queueKey(letter) {
  const main = document.getElementById("main");
  if (/^[1-9]$/.test(letter)) main.querySelectorAll(".same-as")[Number(letter) - 1]?.click();
  else main.querySelector(`[data-key="${CSS.escape(letter)}"]`)?.click();
}

// What is ticked stays so when somebody else's decision draws the page anew.
const selection = { place: null, chosen: new Map() };

export async function place(main, id) {
  const card = state.cards.get(id);
  if (!card) { main.replaceChildren(el("h2", {}, "There is no such cluster.")); return; }
  if (selection.place !== id) Object.assign(selection, { place: id, chosen: new Map() });
  const { chosen } = selection;
  const bar = el("div", { class: "actions", id: "selection" });
  const sure = el("div", { class: "members", id: "sure" });
  const doubtful = el("div", { class: "members", id: "doubtful" });
  const doubtfulTitle = el("h3", { hidden: true }, "Doubtful: another output is nearly as probable");
  const more = el("button", { type: "button", hidden: true }, "Show more");
  const keys = () => [...chosen.values()];
  const move = async (kind, decision) => {
    const before = [...chosen];
    const regions = keys();
    chosen.clear();
    if (await decide(kind, { regions, ...decision })) return;
    for (const [words, one] of before) chosen.set(words, one);
    drawBar();
  };
  const drawBar = () => {
    const input = el("input", { name: "target", list: "names", autocomplete: "off", maxlength: 100, placeholder: "name of a class, old or new", "aria-label": "Move the selection to" });
    bar.replaceChildren(el("span", {}, `${chosen.size} selected`), ...(chosen.size ? [
      el("form", { class: "actions", onsubmit: (event) => { event.preventDefault(); move("move_to_name", { name: input.value }); } }, input, el("button", {}, "Move")),
      el("button", { type: "button", id: "not-object", onclick: () => move("move", { into: -1 }) }, "Not an object"),
      el("button", { type: "button", id: "move-back", onclick: () => move("move_back", {}) }, "Back where found"),
    ] : [el("span", { class: "soft" }, "Tick regions to move them; click one to see its photograph.")]));
  };
  const member = (one) => {
    const words = `region ${one.key.join("/")}, ${Math.round(100 * one.confidence)} %`;
    return el("div", { class: "member" },
      el("button", { type: "button", "aria-label": `Photograph of ${words}`, onclick: () => showPhotograph(one.key) }, thumbnail(one.key, words)),
      el("label", {}, el("input", { type: "checkbox", checked: chosen.has(words), "aria-label": `Select ${words}`, onchange: (event) => {
        if (event.target.checked) chosen.set(words, one.key); else chosen.delete(words);
        drawBar();
      } })),
      el("span", {}, one.moved ? "put here" : `${Math.round(100 * one.confidence)} %`));
  };
  let shown = 0;
  const load = async () => {
    const part = await ask(`api/members/${id}?start=${shown}&count=${MEMBERS}`);
    shown += part.members.length;
    for (const one of part.members) (one.doubtful ? doubtful : sure).append(member(one));
    doubtfulTitle.hidden = !doubtful.children.length;
    more.hidden = shown >= part.total;
  };
  more.onclick = load;
  drawBar();
  await load();
  if (location.hash !== `#/place/${id}`) return;
  main.replaceChildren(
    heading(card, "h2"), facts(card),
    ...(id >= 0 ? [el("div", { class: "actions" }, nameForm(card), ignoreButton(card),
      card.name ? el("button", { type: "button", id: "separate", onclick: () => decide("separate", { cluster: id }) }, "Take the name away") : "")] : []),
    ...[id >= 0 ? sameCandidates(card) : null].filter(Boolean),
    bar, sure, doubtfulTitle, doubtful, more);
}

export function aside(main) {
  const places = [...state.cards.values()].filter((c) => c.id < 0 && c.size > 0).sort((a, b) => b.id - a.id);
  const ignored = sorted(clusters().filter((c) => c.ignored), "id");
  const section = (title, cards, draw) => el("section", {}, el("h2", {}, title),
    cards.length ? el("div", { class: "cards" }, ...cards.map(draw)) : el("p", { class: "soft" }, "None."));
  main.replaceChildren(
    section("Ignored clusters", ignored, cardElement),
    section("Regions in no cluster", places, (c) => el("article", { class: "card" }, heading(c), strip(c), facts(c))));
}

export async function history(main) {
  const lines = await ask("api/history");
  if (location.hash !== "#/history") return;
  const list = el("ol", { class: "history" }, ...lines.map((line) => el("li", { class: line.status },
    el("time", { class: "soft", datetime: new Date(line.at * 1000).toISOString() }, new Date(line.at * 1000).toLocaleString()), " ", line.said,
    line.status === "done" ? "" : ` (${line.status})`)));
  main.replaceChildren(el("h2", {}, "History"), lines.length ? list : el("p", {}, "Nothing is decided yet."));
}
