// What the views show of a cluster.
import { nameField } from "./completion.js";
import { confirmMerge, giveName } from "./dialogs.js";
import { button, count, el, percent, strip } from "./elements.js";
import { classOf, decide, isFound, openEarlier, state } from "./state.js";

const NUM_CANDIDATES = 3;
const NUM_SUGGESTED = 2;
const MIN_LIKENESS = 0.1;

export function nameForm(card, after = () => {}) {
  const { input, field } = nameField({ name: "name", placeholder: "What are they?", "aria-label": `Name of ${card.label}`, value: card.name || "" });
  return el("form", { onsubmit: async (event) => {
    event.preventDefault();
    if (await giveName(card, input.value)) after();
  } }, field, el("button", { "aria-label": `Give ${card.label} this name` }, "Name"));
}

export function heading(card, level = "h3") {
  const kind = state.known.includes(card.name) ? "name known" : "name";
  const title = card.name ? el("span", { class: kind }, card.name) : card.label;
  return el(level, {}, level === "h3" ? el("a", { href: `#/place/${card.id}` }, title) : title);
}

export function facts(card) {
  const others = card.name ? classOf(card.name).length - (card.ignored ? 0 : 1) : 0;
  const words = [count(card.size, "region")];
  if (card.name) words.unshift(card.label);
  else if (card.doubtful > 0) words.push(`${percent(card.doubtful)} doubtful`);
  if (others > 0) words.push(`one class with ${count(others, "other")}`);
  if (card.ignored) words.push("ignored");
  return el("span", { class: "soft" }, words.join(" · "));
}

export const ignoreButton = (card, properties = {}) =>
  button(card.ignored ? "No longer ignore" : "Ignore", () => decide("ignore", { clusters: [card.id], ignored: !card.ignored }),
    { class: "ignore", "aria-label": `${card.ignored ? "No longer ignore" : "Ignore"} ${card.label}`, ...properties });

export function cardElement(card) {
  return el("article", { class: card.ignored ? "card ignored" : "card", id: card.label },
    el("div", { class: "title" }, heading(card), ignoreButton(card)), strip(card), facts(card), nameForm(card), suggestedNames(card));
}

// A known class and clusters that are not ignored and not of the same class, the most similar first.
export function similar(card) {
  const isOpen = (other) => other && other.size > 0 && !other.ignored && (!card.name || card.name !== (other.name || other.label));
  const near = (card.near || []).map((id) => state.cards.get(id)).filter(isOpen).slice(0, NUM_CANDIDATES);
  return [...near, state.cards.get(card.known)].filter(isOpen);
}

export function sameCandidates(card, after = () => {}) {
  const candidates = similar(card);
  if (!candidates.length) return null;
  return el("section", { class: "same", "aria-label": "The same?" }, el("h3", {}, "The same?"), candidates.map((other, i) =>
    el("div", { class: "card candidate" }, el("div", {}, heading(other), el("span", { class: "soft" }, count(other.size, "region"))), strip(other, 4),
      button("Same as this", async () => { if (await confirmMerge(card, other)) after(); },
        { key: String(i + 1), class: "same-as", "aria-label": `Same as ${other.name || other.label}` }))));
}

// Names from the user's own classes: of the same regions before, of similar clusters, a known class.
export function suggestedNames(card, after = () => {}, properties = {}) {
  if (card.name || card.ignored || card.id < 0) return null;
  const accept = async () => { if (await decide("accept", { clusters: [card.id] })) after(); };
  const before = openEarlier().find((one) => one.cluster === card.id);
  const known = card.likeness >= MIN_LIKENESS ? [state.cards.get(card.known).label] : [];
  const near = similar(card).filter((other) => other.id >= 0 && other.name).map((other) => other.name);
  const names = [...new Set([...near, ...known])].filter((name) => name !== before?.name && !isFound(name)).slice(0, NUM_SUGGESTED);
  if (!before && !names.length) return null;
  return el("div", { class: "suggested" },
    before ? button(`${before.name ? `“${before.name}”` : "Ignored"} before, ${percent(before.shared / before.size)}`, accept, { class: "chip before", ...properties }) : null,
    names.map((name) => button(`${name}?`, async () => { if (await giveName(card, name)) after(); }, { class: "chip" })));
}
