"""The page in a real browser: its views, the grid, the queue, the map, the history."""

import re
from typing import TYPE_CHECKING, Literal

import pytest

from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import read_decisions
from tests.browser import Watched, open_address
from tests.naming.browsing import box_of, wait_for_text
from tests.naming.served import KNOWN, Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def expected_order(site: Site) -> list[str]:
    facts = site.board.membership.facts
    order = sorted(range(len(facts)), key=lambda c: (-facts[c].promise, c))
    return [f"novel_{c:04d}" for c in order]


VIEWS = ["#/", "#/queue", "#/map", "#/earlier", "#/aside", "#/history", "#/place/2", "#/place/-2"]
UNLABELLED = """() => [...document.querySelectorAll("button, input, select, a, [role=checkbox]")]
  .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
  .map((e) => e.outerHTML)"""


UNREADABLE = """() => {
  const rgba = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 10.31475 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const brightness = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const upwards = (e) => (e ? [e, ...upwards(e.parentElement)] : []);
  const contrast = (e) => {
    const styles = upwards(e).map((one) => getComputedStyle(one));
    const grounds = styles.map((style) => rgba(style.backgroundColor));
    const ground = grounds.find((one) => one.length < 4 || one[3] > 0);
    const opacity = styles.reduce((all, style) => all * style.opacity, 1);
    const ink = rgba(styles[0].color).map((v, i) => opacity * v + (1 - opacity) * ground[i]);
    const [low, high] = [brightness(ink), brightness(ground)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((e) => hasText(e) && e.checkVisibility() && !e.matches("svg *, :disabled, :disabled *"))
    .filter((e) => contrast(e) < 4.5)
    .map((e) => `${contrast(e).toFixed(2)} ${e.outerHTML}`);
}"""
"""Texts with less contrast to what is behind them than WCAG 2 (AA) asks for."""


@pytest.mark.parametrize(
    ("width_px", "colours"),
    [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")],
)
def test_every_view_is_readable_labelled_and_without_errors(
    browser: "Browser", site: Site, width_px: int, colours: Literal["light", "dark"]
):
    site.decide("name", clusters=[3], name="m" * 100)
    site.decide("ignore", clusters=[1])
    with open_address(browser, site.address, width_px=width_px, colours=colours) as opened:
        page = opened.page
        page.wait_for_selector("#cards .card")
        for view in VIEWS:
            page.goto(f"{site.address}{view}")
            page.wait_for_selector(f'main[data-shown="{view}"]')
            assert opened.undecoded_images() == [], view
            assert opened.images_without_words() == 0, view
            assert page.evaluate(UNLABELLED) == [], view
            assert page.evaluate(UNREADABLE) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= width_px, view
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open] dt")
        assert page.evaluate("document.documentElement.scrollWidth") <= width_px
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert (brightness < 128) == (colours == "dark")
        assert opened.complaints == []


def test_at_first_clusters_are_shown_the_most_promising_first(opened: Watched, site: Site):
    assert opened.shown_clusters() == expected_order(site)
    assert opened.page.inner_text("#looked") == "0 of 5 looked at"
    assert opened.page.inner_text("#count") == "5 of 5 clusters"
    sizes = [len(site.board.membership.rows_of_cluster(c)) for c in range(5)]
    opened.page.select_option("select[name=order]", "size")
    by_size = sorted(range(5), key=lambda c: (-sizes[c], c))
    assert opened.shown_clusters() == [f"novel_{c:04d}" for c in by_size]
    doubtful = {c["label"] for c in site.get("api/state")["cards"] if c["doubtful"] > 0.5}
    opened.page.select_option("select[name=show]", "doubtful")
    assert set(opened.shown_clusters()) == {one for one in doubtful if one.startswith("novel")}


def test_the_grid_goes_by_keyboard_alone(opened: Watched, site: Site):
    page = opened.page
    page.keyboard.press("/")
    page.keyboard.type("0003")
    page.keyboard.press("Enter")
    assert opened.shown_clusters() == ["novel_0003"]
    opened.press_until("Tab", "name")
    page.keyboard.type("mug")
    page.keyboard.press("Enter")
    wait_for_text(opened, "#novel_0003 h3", "mug")
    assert opened.focused() == "name"
    opened.press_until("Shift+Tab", "ignore")
    page.keyboard.press("Enter")
    page.wait_for_selector("#novel_0003", state="detached")
    assert opened.focused() == "main"
    page.keyboard.press("Control+z")
    page.wait_for_selector("#novel_0003")
    page.keyboard.press("Control+Shift+Z")
    page.wait_for_selector("#novel_0003", state="detached")
    assert read_decisions(site.board.store.path).ignored == {3}


def test_the_queue_goes_by_keyboard_alone(browser: "Browser", site: Site):
    order = [int(label[-4:]) for label in expected_order(site)]
    with open_address(browser, f"{site.address}#/queue") as opened:
        page = opened.page

        def wait_for(cluster: int) -> None:
            page.wait_for_selector(f'#one[data-cluster="{cluster}"]')

        wait_for(order[0])
        page.keyboard.press("n")
        page.keyboard.type("mug")
        page.keyboard.press("Enter")
        wait_for(order[1])
        page.keyboard.press("i")
        wait_for(order[2])
        page.keyboard.press("s")
        wait_for(order[3])
        page.keyboard.press("b")
        wait_for(order[2])
        page.keyboard.press("1")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Enter")
        wait_for_text(opened, "#looked", "looked at")
        page.wait_for_selector(f'#one:not([data-cluster="{order[2]}"])')
        decisions = read_decisions(site.board.store.path)
        assert decisions.names[order[0]] == "mug"
        assert decisions.ignored == {order[1]}
        assert order[2] in decisions.names
        assert opened.complaints == []


def open_candidates(opened: Watched) -> list[str]:
    return opened.page.locator(".candidate h3").all_inner_texts()


def test_the_most_similar_are_asked_about_side_by_side_but_no_ignored_ones(
    browser: "Browser", site: Site
):
    facts = site.board.membership.facts
    cluster = max(range(5), key=lambda c: facts[c].promise)
    near = [f"novel_{c:04d}" for c in facts[cluster].nearest]
    known = KNOWN[facts[cluster].nearest_known]
    with open_address(browser, f"{site.address}#/queue") as opened:
        page = opened.page
        page.wait_for_selector(".candidate")
        assert open_candidates(opened) == [*near[:3], known]
        assert page.locator(".candidate").first.locator("img").count() > 0
        mine, other = box_of(opened, "#one .strip"), box_of(opened, ".candidate")
        assert mine["x"] + mine["width"] <= other["x"]
        assert site.decide("ignore", clusters=[facts[cluster].nearest[0]])[0] == 200
        page.locator(".candidate h3", has_text=near[0]).wait_for(state="detached")
        assert open_candidates(opened) == [*near[1:4], known]
        assert site.decide("name", clusters=[facts[cluster].nearest[1]], name="mug")[0] == 200
        wait_for_text(opened, ".candidate h3", "mug")
        page.locator(".chip", has_text="mug?").click()
        page.wait_for_selector("dialog[open]")
        page.click("#merge")
        page.wait_for_selector("dialog", state="hidden")
        assert read_decisions(site.board.store.path).names[cluster] == "mug"
        page.goto(f"{site.address}#/place/{cluster}")
        page.wait_for_selector(".member")
        assert open_candidates(opened) == [*near[2:4], known]
        assert opened.complaints == []


def test_ignored_clusters_have_their_list_and_all_is_undone_after_a_reload(
    opened: Watched, site: Site
):
    page = opened.page
    page.click("#novel_0002 .ignore")
    page.wait_for_selector("#novel_0002", state="detached")
    page.click("nav >> text=Aside")
    wait_for_text(opened, "#novel_0002", "ignored")
    page.reload()
    page.wait_for_selector("#undo:enabled")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#redo:enabled")
    assert read_decisions(site.board.store.path).ignored == frozenset()
    page.click("#redo")
    page.wait_for_selector("#undo:enabled")
    assert read_decisions(site.board.store.path).ignored == {2}
    page.click("#novel_0002 .ignore")
    page.wait_for_selector("#novel_0002", state="detached")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#novel_0002")
    page.click("nav >> text=History")
    page.wait_for_selector(".history li")
    said = page.locator(".history li > span").all_inner_texts()
    assert said == ["No longer ignored: novel_0002", "Ignored: novel_0002"]
    assert page.locator(".history li").first.get_attribute("class") == "undone"


def test_a_long_history_is_shown_to_its_beginning(browser: "Browser", site: Site):
    for number in range(130):
        site.board.store.decide(Edit(f"step {number}", {0: ClusterState(str(number))}))
    with open_address(browser, f"{site.address}#/history") as opened:
        opened.page.wait_for_selector(".history li")
        assert opened.page.locator(".history li").count() == 100
        opened.page.click("#older")
        wait_for_text(opened, ".history li", "step 0")
        assert opened.page.locator(".history li").count() == 130
        opened.page.wait_for_selector("#older", state="hidden")
        assert opened.complaints == []


def test_the_map_selects_clusters_to_decide_about_at_once(browser: "Browser", site: Site):
    with open_address(browser, f"{site.address}#/map") as opened:
        page = opened.page
        page.wait_for_selector("circle")
        assert page.locator("circle").count() == 5
        assert opened.undecoded_images() == []
        selected = "circle[aria-checked=true]"
        page.click("circle[data-cluster='1']")
        page.locator("circle[data-cluster='2']").focus()
        page.keyboard.press("Space")
        assert page.locator(selected).count() == 2
        page.fill("input[name=one-name]", "mug")
        page.keyboard.press("Enter")
        wait_for_text(opened, ".map text", "mug")
        assert dict(read_decisions(site.board.store.path).names) == {1: "mug", 2: "mug"}
        page.wait_for_selector(selected, state="detached")
        page.evaluate("scrollTo(0, 0)")
        box = box_of(opened, ".map")
        page.mouse.move(box["x"] + 12, box["y"] + 12)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 12, box["y"] + box["height"] - 12)
        page.mouse.up()
        assert page.locator(selected).count() == 5
        page.click("circle[data-cluster='1']")
        page.click("circle[data-cluster='2']")
        page.keyboard.press("i")
        page.wait_for_function("() => document.querySelectorAll('.dot.ignored').length == 3")
        assert read_decisions(site.board.store.path).ignored == {0, 3, 4}
        assert opened.complaints == []


def test_the_map_goes_by_keyboard_to_what_lies_in_that_direction(browser: "Browser", site: Site):
    positions = [one.position for one in site.board.membership.facts]
    left = min(range(5), key=lambda c: positions[c][0])
    with open_address(browser, f"{site.address}#/map") as opened:
        page = opened.page
        page.locator(f"circle[data-cluster='{left}']").focus()
        seen = [left]
        for _ in range(5):
            page.keyboard.press("ArrowRight")
            seen.append(int(page.evaluate("document.activeElement.dataset.cluster")))
        along = [positions[c][0] for c in dict.fromkeys(seen)]
        assert along == sorted(along)
        assert len(along) > 1
        page.keyboard.press("Enter")
        page.wait_for_selector(".member")
        assert page.evaluate("location.hash") == f"#/place/{seen[-1]}"
        assert opened.complaints == []
