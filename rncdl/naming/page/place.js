// All regions of a cluster, of a known class, or of what is not an object.
import { facts, heading, ignoreButton, nameForm, sameCandidates, suggestedNames } from "./cards.js";
import { nameField } from "./completion.js";
import { showPhotograph } from "./dialogs.js";
import { button, count, el, percent, thumbnail } from "./elements.js";
import { ask, clusterLabelled, decide, state } from "./state.js";

const MEMBERS = 200;
// What is ticked, and how much is shown, stays so when a decision draws the page anew.
const selection = { place: null, chosen: new Map(), wanted: MEMBERS };
let redraw = () => {}; // of what is on the page now

async function loadMembers(id, wanted) {
  const found = { members: [], total: Infinity };
  while (found.members.length < Math.min(wanted, found.total)) {
    const part = await ask(`api/members/${id}?start=${found.members.length}&count=${MEMBERS}`);
    found.members.push(...part.members);
    Object.assign(found, { total: part.total, doubtful: part.num_doubtful });
  }
  return found;
}

async function move(kind, decision) {
  const before = [...selection.chosen];
  selection.chosen.clear();
  if (await decide(kind, { regions: before.map(([, key]) => key), ...decision })) return;
  for (const [words, key] of before) selection.chosen.set(words, key);
  redraw();
}

function moveToNamed(text) {
  const cluster = clusterLabelled(text);
  return cluster ? move("move", { into: cluster.id }) : move("move_to_name", { name: text });
}

function selectionBar(bar, selectAll) {
  const { chosen } = selection;
  const { input, field } = nameField({ name: "target", placeholder: "class, old or new", "aria-label": "Move the selection to" });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); moveToNamed(input.value); } },
    field, el("button", {}, "Move"));
  const confirm = selection.place < 0 ? [] : [button("They belong here", () => move("move", { into: selection.place }), { key: "c", id: "confirm" })];
  bar.replaceChildren(el("strong", { role: "status" }, `${chosen.size} selected`),
    button("Select all shown", selectAll, { key: "a", id: "select-all" }),
    ...(chosen.size ? [form,
      button("Move", () => input.focus(), { key: "m", class: "only-key" }), ...confirm,
      button("New cluster", () => move("move_to_new", {}), { id: "new-cluster" }),
      button("Not an object", () => move("move", { into: -1 }), { key: "x", id: "not-object" }),
      button("Back where found", () => move("move_back", {}), { id: "move-back" }),
      button("Clear", () => { chosen.clear(); redraw(); }, { id: "clear" }),
    ] : [el("span", { class: "soft" }, "Tick regions to move them, with Shift up to the last one; click one for its photograph.")]));
}

const wordsOf = (one) => `region ${one.key.join("/")}, ${percent(one.confidence)}`;

function memberElement(members, position, tick) {
  const one = members[position];
  const words = wordsOf(one);
  return el("div", { class: "member" },
    el("button", { type: "button", "aria-label": `Photograph of ${words}`, onclick: () => showPhotograph(members, position) }, thumbnail(one.key, words)),
    el("label", {}, el("input", { type: "checkbox", name: "member", "aria-label": `Select ${words}`, onclick: (event) => tick(position, event.target.checked, event.shiftKey) })),
    el("span", {}, one.moved ? "by hand" : percent(one.confidence)));
}

function memberGrid(found) {
  const { chosen } = selection;
  const bar = el("div", { class: "actions", id: "selection" });
  let last = 0;
  redraw = () => {
    for (const [i, one] of found.members.entries()) elements[i].querySelector("input").checked = chosen.has(wordsOf(one));
    selectionBar(bar, () => tickRange(0, found.members.length - 1, true));
  };
  const tickRange = (from, to, isTicked) => {
    for (const one of found.members.slice(Math.min(from, to), Math.max(from, to) + 1)) {
      if (isTicked) chosen.set(wordsOf(one), one.key); else chosen.delete(wordsOf(one));
    }
    redraw();
  };
  const tick = (position, isTicked, withShift) => {
    tickRange(withShift ? last : position, position, isTicked);
    last = position;
  };
  const elements = found.members.map((_, i) => memberElement(found.members, i, tick));
  const part = (id, isDoubtful) => el("div", { class: "members", id }, elements.filter((_, i) => found.members[i].doubtful === isDoubtful));
  redraw();
  return [bar, part("sure", false),
    ...(found.members.some((one) => one.doubtful) ? [el("h3", { id: "doubtful-title" }, `Doubtful: another output is nearly as probable (${found.doubtful.toLocaleString("en")})`)] : []),
    part("doubtful", true)];
}

function clusterHead(card) {
  return [
    el("div", { class: "actions" }, nameForm(card), button("Type a name", () => document.querySelector("main input[name=name]").focus(), { key: "n", class: "only-key" }),
      ignoreButton(card, { key: "i" }),
      card.name ? button("Take the name away", () => decide("separate", { cluster: card.id }), { id: "separate" }) : null),
    suggestedNames(card), sameCandidates(card)].filter(Boolean);
}

export async function place(main, id) {
  const card = state.cards.get(id);
  if (!card) { main.replaceChildren(el("h2", {}, "There is no such cluster.")); return; }
  if (selection.place !== id) Object.assign(selection, { place: id, chosen: new Map(), wanted: MEMBERS });
  const found = await loadMembers(id, selection.wanted);
  if (location.hash !== `#/place/${id}`) return;
  const left = found.total - found.members.length;
  const more = button(`Show more (${count(left, "region")} left)`, () => { selection.wanted += MEMBERS; place(main, id); }, { id: "more", hidden: left <= 0 });
  const isNothing = id === -2 - state.known.length;
  const words = isNothing ? [el("p", { class: "soft" }, "The heads see no object in these regions. The percentages are of the class that is most probable beside that.")] : [];
  main.replaceChildren(heading(card, "h2"), facts(card), ...words, ...(id >= 0 ? clusterHead(card) : []), ...memberGrid(found), more);
}
