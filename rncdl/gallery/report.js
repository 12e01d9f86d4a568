"use strict";
(() => {
  const PAGE = 24;
  const KINDS = { c: "most confident", t: "most typical", r: "at random", d: "doubtful" };
  const clusters = JSON.parse(document.getElementById("cluster-data").textContent);
  const controls = document.getElementById("controls");
  const cards = document.getElementById("cards");
  const more = document.getElementById("more");
  let chosen = [];
  let shown = 0;

  const nameOf = (id) => "novel_" + String(id).padStart(4, "0");
  const percent = (share) => Math.round(100 * share) + " %";

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function thumbnails(cluster) {
    const groups = element("div", { className: "thumbs" });
    const kinds = [...cluster.kinds];
    const numberOf = (kind) => kinds.filter((of) => of === kind).length;
    // In two rows the surest stand beside the doubtful, the typical beside the random.
    const rows = (kinds.length > 4 ? ["cd", "tr"] : ["ctrd"]).map((row) => [...row].filter(numberOf));
    const columns = Math.max(...rows.map((row) => row.reduce((sum, kind) => sum + numberOf(kind), 0)));
    groups.style.setProperty("--columns", Math.max(4, columns));
    for (const kind of rows.flat()) {
      const group = element("div", {}, element("span", { textContent: KINDS[kind] }));
      group.style.setProperty("--span", numberOf(kind));
      if (kind === rows[1]?.[0]) group.style.gridColumnStart = 1;
      kinds.forEach((of, position) => {
        if (of !== kind) return;
        const picture = element("img", {
          decoding: "async", src: cluster.strip,
          alt: `${nameOf(cluster.id)}, region ${position + 1} of ${kinds.length}: ${KINDS[kind]}`,
        });
        // The strip holds squares in a row; this moves one of them into the frame.
        picture.style.objectPosition = `${(100 * position) / Math.max(1, kinds.length - 1)}% 0`;
        group.append(picture);
      });
      groups.append(group);
    }
    return groups;
  }

  function meter(label, share, className) {
    const bar = element("i", { className, ariaHidden: "true" });
    bar.style.setProperty("--share", `${100 * share}%`);
    return [element("span", { textContent: label }), bar, element("b", { textContent: percent(share) })];
  }

  function card(cluster) {
    const name = nameOf(cluster.id);
    const title = element("h3", {}, name);
    if (cluster.name) {
      title.append(element("span", { textContent: cluster.name, title: "Named by people" }));
    } else if (cluster.class) {
      title.append(cluster.clear
        ? element("span", { textContent: cluster.class })
        : element("span", { textContent: `${cluster.class}?`, className: "unclear", title: "Given by evaluation, but most annotated boxes that it took are of another class" }));
    }
    const near = element("p", { className: "near" }, "Nearest ");
    for (const id of cluster.near) {
      const button = element("button", { type: "button", textContent: nameOf(id) });
      button.addEventListener("click", () => jump(id));
      near.append(button);
    }
    let facts = `${cluster.size.toLocaleString("en")} regions in ${cluster.images.toLocaleString("en")} images`;
    if (cluster.taken?.length) {
      facts += `. Of ${cluster.seen} annotated boxes ${cluster.taken.map(([of, count]) => `${count} ${of}`).join(", ")}`;
    } else if (cluster.class) {
      facts += `. Of ${cluster.seen} annotated boxes ${cluster.count} ${cluster.class}`;
    }
    return element(
      "article", { className: "card", id: name, tabIndex: -1 },
      title, element("p", { textContent: facts }), thumbnails(cluster),
      element("div", { className: "meters" },
        ...meter("confidence", cluster.confidence, ""),
        ...meter("coherence", cluster.coherence, ""),
        ...meter(`like ${cluster.known}`, cluster.likeness, "other"),
        ...meter("background", cluster.background, "other")),
      near,
    );
  }

  function showMore(count = PAGE) {
    const next = chosen.slice(shown, shown + count);
    cards.append(...next.map(card));
    shown += next.length;
    const left = chosen.length - shown;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
  }

  function choose() {
    const form = new FormData(controls);
    const word = form.get("find").trim().toLowerCase();
    const order = form.get("order");
    const sign = ["likeness", "background", "id"].includes(order) ? 1 : -1;
    const most = (name) => (form.get(name) === "" ? 1 : Number(form.get(name)) / 100);
    chosen = clusters.filter((cluster) =>
      cluster.size >= Number(form.get("regions") || 1) &&
      cluster.background <= most("background") &&
      cluster.likeness <= most("likeness") &&
      (!form.get("assigned") || Boolean(cluster.class) === (form.get("assigned") === "yes")) &&
      [nameOf(cluster.id), cluster.name || "", cluster.class || "", cluster.known].some((text) => text.toLowerCase().includes(word)));
    chosen.sort((a, b) => sign * (a[order] - b[order]) || a.id - b.id);
    cards.replaceChildren();
    shown = 0;
    showMore();
    document.getElementById("count").textContent =
      `${chosen.length.toLocaleString("en")} of ${clusters.length.toLocaleString("en")} clusters`;
  }

  function jump(id) {
    let position = chosen.findIndex((cluster) => cluster.id === id);
    if (position < 0) {
      if (!clusters.some((cluster) => cluster.id === id)) return;
      controls.reset();
      choose();
      position = chosen.findIndex((cluster) => cluster.id === id);
    }
    if (position >= shown) showMore(position + 1 - shown);
    const found = document.getElementById(nameOf(id));
    found.scrollIntoView({ block: "center" });
    found.focus({ preventScroll: true });
  }

  function followHash() {
    const found = /^#novel_(\d+)$/.exec(location.hash);
    if (found) jump(Number(found[1]));
  }

  controls.addEventListener("input", choose);
  controls.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    const first = cards.children.length;
    showMore();
    cards.children[first].focus({ preventScroll: true });
  });
  addEventListener("hashchange", followHash);
  choose();
  followHash();
})();
