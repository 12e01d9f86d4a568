// One cluster large. What was passed over is gone through again with "back".
import { facts, heading, nameForm, sameCandidates, suggestedNames } from "./cards.js";
import { button, el, strip } from "./elements.js";
import { sorted } from "./grid.js";
import { clusters, decide, state } from "./state.js";

const queue = { past: [], current: null };

export function oneByOne(main) {
  const waiting = sorted(clusters().filter((c) => !c.looked_at && !c.ignored), "promise");
  let card = queue.current === null ? undefined : state.cards.get(queue.current);
  if (!card || !card.size) card = waiting[0];
  if (!card) {
    main.replaceChildren(el("h2", {}, "All clusters are looked at."), el("p", {}, el("a", { href: "#/" }, "Back to the clusters")));
    return;
  }
  queue.current = card.id;
  const next = () => {
    queue.past.push(card.id);
    queue.current = null;
    oneByOne(main);
  };
  const ignore = async () => { if (await decide("ignore", { clusters: [card.id] })) next(); };
  const skip = async () => { if (await decide("skip", { cluster: card.id })) next(); };
  const back = () => { queue.current = queue.past.pop(); oneByOne(main); };
  main.replaceChildren(el("article", { class: "large", id: "one", "data-cluster": card.id },
    el("div", {},
      el("div", { class: "title" }, heading(card, "h2"), el("span", { class: "soft" }, `${waiting.length} to go`)),
      strip(card), facts(card), nameForm(card, next), suggestedNames(card, next, { key: "y" }),
      el("div", { class: "actions" },
        button("Type a name", () => main.querySelector("input[name=name]").focus(), { key: "n" }),
        button("Ignore", ignore, { key: "i" }), button("Skip", skip, { key: "s" }),
        button("Back", back, { key: "b", disabled: !queue.past.length }),
        el("a", { href: `#/place/${card.id}` }, "All its regions"))),
    sameCandidates(card, next)));
}
