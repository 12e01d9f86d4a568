import { el, strip } from "./elements.js";
import { ask, classOf, decide, knownCard, names, say, state } from "./state.js";

function open(...children) {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(...children);
  if (!dialog.open) dialog.showModal();
  return dialog;
}

const side = (card) => el("div", {}, el("h3", {}, card.name || card.label), strip(card));

// Who goes into whom, with pictures; resolves to whether they were merged.
export function confirmMerge(source, into) {
  return new Promise((resolve) => {
    let isMerged = false;
    const draw = () => {
      const swappable = into.id >= 0 && source.name && into.name && !state.known.includes(source.name) && !state.known.includes(into.name);
      const kept = into.id < 0 ? into.label : state.known.includes(source.name) ? source.name : into.name || source.name || into.label;
      const dialog = open(
        el("h2", {}, `Merge into “${kept}”?`),
        el("p", { class: "soft" }, "Both become one class. It can be undone."),
        el("div", { class: "sides" }, side(source), el("span", { "aria-label": "goes into" }, "→"), side(into)),
        el("div", { class: "actions" },
          el("button", { class: "main", type: "button", id: "merge", autofocus: true, onclick: async () => {
            isMerged = await decide("merge", { cluster: source.id, into: into.id });
            dialog.close();
          } }, "Merge"),
          swappable ? el("button", { type: "button", id: "swap", onclick: () => { [source, into] = [into, source]; draw(); } }, "Swap") : null,
          el("button", { type: "button", onclick: () => dialog.close() }, "Keep apart")),
      );
      dialog.onclose = () => resolve(isMerged);
      dialog.querySelector("#merge").focus();
    };
    draw();
  });
}

// Name a cluster; a name that is taken offers the merge. Resolves to whether anything was decided.
export async function giveName(card, text) {
  const wanted = text.trim().replace(/\s+/g, " ").toLowerCase();
  if (!wanted) return false;
  const taken = names().find((name) => name.toLowerCase() === wanted && name !== card.name);
  const into = taken && (knownCard(taken) || classOf(taken)[0]);
  if (into && into.id !== card.id) return confirmMerge(card, into);
  return decide("name", { cluster: card.id, name: text });
}

export async function showPhotograph([image, region]) {
  try {
    const place = await ask(`api/region/${image}/${region}`);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 1 1");
    svg.setAttribute("preserveAspectRatio", "none");
    const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [to, from] of [["x", "left"], ["y", "top"], ["width", "width"], ["height", "height"]]) box.setAttribute(to, place[from]);
    svg.append(box);
    const dialog = open(
      el("h2", {}, place.file),
      el("div", { class: "photograph" }, el("img", { src: `photograph/${image}`, alt: `${place.file} with the region marked` }), svg),
      el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    );
    dialog.onclose = null;
  } catch (error) { say(error.message); }
}

