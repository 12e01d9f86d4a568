// What was decided before, and what has been decided here.
import { facts, heading } from "./cards.js";
import { button, count, el, percent, strip, thumbnail } from "./elements.js";
import { ask, decide, openEarlier, state } from "./state.js";

function overlap(one) {
  const was = one.name ? `“${one.name}”` : "ignored";
  const share = one.name ? ` That is ${percent(one.shared / one.class_size)} of what was ${was}.` : "";
  return `${one.shared.toLocaleString("en")} of its ${count(one.size, "region")} (${percent(one.shared / one.size)}) were ${was} in ${one.title}.${share}`;
}

function suggestion(one) {
  const card = state.cards.get(one.cluster);
  return el("article", { class: "card", id: `earlier-${one.cluster}` }, heading(card), strip(card), facts(card),
    el("p", {}, overlap(one)),
    el("div", { class: "actions" },
      button(one.name ? `Name “${one.name}”` : "Ignore", () => decide("accept", { clusters: [one.cluster] }), { class: "accept main", "aria-label": `${one.name ? `Name ${card.label} “${one.name}”` : `Ignore ${card.label}`}` }),
      button("Not so", () => decide("skip", { cluster: one.cluster }), { class: "refuse", "aria-label": `Not so: ${card.label}` })));
}

function moved(one) {
  const where = one.name ? `into “${one.name}”` : "among those that are not objects";
  return el("article", { class: "card" }, el("h3", {}, one.name || "not an object"),
    el("div", { class: "strip" }, one.pictures.map((key) => thumbnail(key, "region that was moved"))),
    el("p", {}, `${count(one.number, "region")} had been put ${where} by hand.`),
    el("div", { class: "actions" }, button("Put them there again", () => decide("accept_moves", { name: one.name || "" }), { class: "accept-moves" })));
}

export async function earlier(main) {
  const { moves } = await ask("api/earlier");
  if (location.hash !== "#/earlier") return;
  const open = openEarlier().sort((a, b) => b.shared / b.size - a.shared / a.size);
  const all = button(`Accept all ${open.length}`, () => decide("accept", { clusters: open.map((one) => one.cluster) }), { id: "accept-all", class: "main", hidden: !open.length });
  main.replaceChildren(el("h2", {}, "From before"),
    el("p", { class: "soft" }, "What you decided about an earlier discovery, for the clusters that share its regions. Nothing of it counts until you accept it."),
    el("div", { class: "actions" }, all, open.length ? "" : el("span", {}, "All of it is decided.")),
    el("div", { class: "cards" }, open.map(suggestion)),
    ...(moves.length ? [el("h2", {}, "Regions put by hand"), el("div", { class: "cards" }, moves.map(moved))] : []));
}

function historyLine(line) {
  const at = new Date(line.at * 1000);
  const status = { done: "", undone: " (undone)", dropped: " (undone, and something else decided)" }[line.status];
  return el("li", { class: line.status }, el("time", { class: "soft", datetime: at.toISOString() }, at.toLocaleString()), " ", el("span", {}, line.said), status);
}

export async function history(main) {
  const lines = await ask("api/history");
  if (location.hash !== "#/history") return;
  const list = el("ol", { class: "history" }, lines.map(historyLine));
  let last = lines.at(-1)?.id;
  const older = button("Show older", async () => {
    const found = await ask(`api/history?before=${last}`);
    list.append(...found.map(historyLine));
    last = found.at(-1)?.id ?? 1;
    older.hidden = last <= 1;
  }, { id: "older", hidden: !(last > 1) });
  main.replaceChildren(el("h2", {}, "History"), lines.length ? list : el("p", {}, "Nothing is decided yet."), older);
}
