import { button, count, el, percent, strip, svg } from "./elements.js";
import { ask, classOf, clusterLabelled, decide, knownCard, names, plain, say, state } from "./state.js";

function open(title, ...children) {
  const dialog = document.getElementById("dialog");
  dialog.onclose = null;
  dialog.onkeydown = null;
  const focused = dialog.contains(document.activeElement) ? document.activeElement.id : "";
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, title), ...children.filter(Boolean));
  if (!dialog.open) dialog.showModal();
  // What had the keyboard is gone, and keys would go to nobody.
  const buttons = [...dialog.querySelectorAll("button:enabled")];
  (buttons.find((one) => one.id && one.id === focused) || buttons[0]).focus();
  return dialog;
}

const isKnown = (card) => card.id < -1 || state.known.includes(card.name);
// Of two, the name of the one that has more of this stays: a known class's, then one that people gave.
const weight = (card) => (isKnown(card) ? 2 : card.name ? 1 : 0);

// A class with all its clusters, as all of them are merged; those of a known class stand each for itself.
function side(card) {
  const others = card.name && !isKnown(card) ? classOf(card.name).filter((one) => one.id !== card.id) : [];
  const size = others.reduce((sum, one) => sum + one.size, card.size);
  return el("div", {}, el("h3", {}, card.name || card.label), strip(card),
    el("span", { class: "soft" }, count(size, "region"), others.length ? ` of ${count(others.length + 1, "cluster")}` : null));
}

// Who goes into whom, with pictures; resolves to whether they were merged.
export function confirmMerge(source, into, merge = mergeTwo) {
  if (weight(source) > weight(into)) [source, into] = [into, source];
  return new Promise((resolve) => {
    let isMerged = false;
    const draw = () => {
      const swappable = into.id >= 0 && source.id >= 0 && weight(source) === weight(into);
      const dialog = open(`Merge into “${into.name || into.label}”?`,
        el("p", { class: "soft" }, "Both become one class. It can be undone."),
        el("div", { class: "sides" }, side(source), el("span", { class: "arrow", role: "img", "aria-label": "goes into" }, "→"), side(into)),
        el("div", { class: "actions" },
          button("Merge", async () => { isMerged = await merge(source, into); dialog.close(); }, { id: "merge", class: "main" }),
          swappable ? button("Swap", () => { [source, into] = [into, source]; draw(); }, { id: "swap" }) : null,
          button("Keep apart", () => dialog.close(), { id: "apart" })));
      dialog.onclose = () => resolve(isMerged);
      dialog.querySelector("#merge").focus();
    };
    draw();
  });
}

const mergeTwo = (source, into) => decide("merge", { cluster: source.id, into: into.id });

// The class that is called so; undefined where none is.
function called(text) {
  const taken = names().find((name) => plain(name) === plain(text));
  return taken && (knownCard(taken) || classOf(taken)[0]);
}

// Name a cluster; a name that is taken, or a cluster's number, offers the merge. Resolves to whether
// anything was decided.
export async function giveName(card, text) {
  if (!text.trim()) return false;
  const into = called(text) || clusterLabelled(text);
  const isOther = into && into.id !== card.id && (into.name || into.label) !== card.name;
  return isOther ? confirmMerge(card, into) : decide("name", { clusters: [card.id], name: text });
}

// Make one class of several clusters.
export async function giveOneName(cards, text) {
  if (!text.trim()) return false;
  const into = called(text);
  const clusters = cards.map((card) => card.id);
  if (!into || classOf(into.name).every((card) => clusters.includes(card.id)) && into.id >= 0) {
    return decide("name", { clusters, name: into?.name || text });
  }
  const all = { id: -1, label: count(cards.length, "cluster"), size: cards.reduce((sum, card) => sum + card.size, 0), pictures: cards.flatMap((card) => card.pictures.slice(0, Math.ceil(8 / cards.length))).slice(0, 8) };
  return confirmMerge(all, into, () => decide("name", { clusters, name: into.name || into.label, merge: true }));
}

// The photograph of one of several members, with its box and mask; arrows go to the others.
export async function showPhotograph(members, position) {
  const { key: [image, region], confidence } = members[position];
  try {
    const place = await ask(`api/region/${image}/${region}`);
    const box = svg("rect", { x: place.left, y: place.top, width: place.width, height: place.height });
    const go = (step) => { if (members[position + step]) showPhotograph(members, position + step); };
    const photograph = el("div", { class: "photograph" },
      el("img", { src: `photograph/${image}`, alt: `${place.file} with the region marked` }),
      place.mask ? el("img", { id: "mask", class: "mask", src: `mask/${image}/${region}`, alt: "the region’s mask" }) : null,
      svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }, box));
    photograph.style.setProperty("--ratio", place.ratio);
    const dialog = open(place.file, photograph,
      el("div", { class: "actions" },
        button("← Before", () => go(-1), { id: "before", disabled: position === 0 }),
        button("Next →", () => go(1), { id: "next", disabled: position === members.length - 1 }),
        button("Close", () => dialog.close()),
        el("span", { class: "soft" }, `${position + 1} of ${members.length} shown · ${percent(confidence)} certain`)));
    dialog.onkeydown = (event) => {
      if (event.key === "ArrowLeft") go(-1);
      if (event.key === "ArrowRight") go(1);
    };
  } catch (error) { say(error.message); }
}

const KEYS = {
  Everywhere: { "Ctrl+Z": "undo", "Ctrl+Shift+Z": "redo", "/": "find", "?": "this list", Esc: "leave a field or a window" },
  "One by one": { n: "type a name", "1 – 4": "the same as this", i: "ignore", s: "skip", b: "back", y: "as before, where earlier decisions suggest something" },
  "A cluster’s page": { n: "type a name", i: "ignore", a: "select all that are shown", m: "move the selection", c: "it belongs here", x: "they are not objects", "← →": "in a photograph, the one before and the next" },
  Map: { "← → ↑ ↓": "go to the next cluster", Space: "select it", Enter: "open it" },
};

export function showKeys() {
  const dialog = open("Keys", ...Object.entries(KEYS).map(([where, keys]) => el("section", {}, el("h3", {}, where),
    el("dl", { class: "keys" }, Object.entries(keys).map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])))),
  el("div", { class: "actions" }, button("Close", () => dialog.close())));
}
