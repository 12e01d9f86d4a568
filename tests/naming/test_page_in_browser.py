"""The page in a real browser: clusters are named, merged, ignored, corrected."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.carrying import CarriedOver, Suggestion
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.edits import ClusterState, Edit
from rncdl.naming.store import read_decisions
from tests.browser import Watched, open_address
from tests.naming.served import KNOWN, Site, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect

SCRIPT = "<img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture
def opened(browser: "Browser", site: Site) -> Iterator[Watched]:
    with open_address(browser, site.address) as watched:
        watched.page.wait_for_selector("#cards .card")
        yield watched
        assert watched.complaints == []


def name_card(opened: Watched, label: str, name: str) -> None:
    opened.page.fill(f"#{label} input[name=name]", name)
    opened.page.keyboard.press("Enter")


def wait_for_text(opened: Watched, selector: str, text: str) -> None:
    opened.page.locator(selector, has_text=text).first.wait_for()


def expected_order(site: Site) -> list[str]:
    facts = site.board.membership.facts
    order = sorted(range(len(facts)), key=lambda c: (-facts[c].promise, c))
    return [f"novel_{c:04d}" for c in order]


VIEWS = ["#/", "#/queue", "#/map", "#/earlier", "#/aside", "#/history", "#/place/2", "#/place/-2"]
UNLABELLED = """() => [...document.querySelectorAll("button, input, select, a, [role=checkbox]")]
  .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
  .map((e) => e.outerHTML)"""


@pytest.mark.parametrize(("width_px", "colours"), [(1280, "light"), (1280, "dark"), (360, "light")])
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


def test_clusters_are_named_found_filtered_and_counted(opened: Watched, site: Site):
    page = opened.page
    name_card(opened, "novel_0003", "  mug ")
    wait_for_text(opened, "#novel_0003 h3", "mug")
    assert dict(read_decisions(site.board.store.path).names) == {3: "mug"}
    assert page.inner_text("#looked") == "1 of 5 looked at"
    options = page.eval_on_selector_all("#names option", "all => all.map(o => o.value)")
    assert options == sorted(["mug", *KNOWN])
    page.select_option("select[name=show]", "named")
    assert opened.shown_clusters() == ["novel_0003"]
    page.select_option("select[name=show]", "unnamed")
    assert "novel_0003" not in opened.shown_clusters()
    page.select_option("select[name=show]", "open")
    page.fill("input[name=find]", "MUG")
    assert opened.shown_clusters() == ["novel_0003"]
    page.fill("input[name=find]", "")
    page.select_option("select[name=order]", "id")
    assert opened.shown_clusters() == [f"novel_{c:04d}" for c in range(5)]


def test_a_name_that_is_taken_offers_the_merge_which_can_be_swapped(opened: Watched, site: Site):
    page = opened.page
    name_card(opened, "novel_0001", "mug")
    wait_for_text(opened, "#novel_0001 h3", "mug")
    name_card(opened, "novel_0002", "cup")
    wait_for_text(opened, "#novel_0002 h3", "cup")
    name_card(opened, "novel_0002", " MUG")
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("dialog h2") == "Merge into “mug”?"
    assert page.locator("dialog img").count() > 2
    page.click("#swap")
    assert page.inner_text("dialog h2") == "Merge into “cup”?"
    page.click("#merge")
    wait_for_text(opened, "#novel_0001 h3", "cup")
    assert dict(read_decisions(site.board.store.path).names) == {1: "cup", 2: "cup"}


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


def test_a_known_class_takes_a_cluster_and_keeps_its_name(opened: Watched, site: Site):
    name_card(opened, "novel_0002", "CAR")
    opened.page.wait_for_selector("dialog[open]")
    assert opened.page.inner_text("dialog h2") == "Merge into “car”?"
    assert opened.page.locator("#swap").count() == 0
    opened.page.click("#apart")
    assert dict(read_decisions(site.board.store.path).names) == {}
    name_card(opened, "novel_0002", "CAR")
    opened.page.keyboard.press("Enter")
    wait_for_text(opened, "#novel_0002 h3 .known", "car")
    name_card(opened, "novel_0001", "novel_0000")
    opened.page.wait_for_selector("dialog[open]")
    opened.page.click("#merge")
    opened.page.wait_for_selector("dialog", state="hidden")
    names = read_decisions(site.board.store.path).names
    assert dict(names) == {0: "novel_0000", 1: "novel_0000", 2: "car"}


def test_a_script_in_a_name_stays_text(opened: Watched, site: Site):
    name_card(opened, "novel_0001", SCRIPT)
    wait_for_text(opened, "#novel_0001 h3", SCRIPT)
    opened.page.click("nav >> text=History")
    wait_for_text(opened, ".history", SCRIPT)
    assert opened.page.title() == "A made-up discovery"
    assert opened.page.locator("img[src=x]").count() == 0


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


def box_of(opened: Watched, selector: str) -> "FloatRect":
    found = opened.page.locator(selector).first.bounding_box()
    assert found is not None
    return found


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
        assert opened.complaints == []


def largest_cluster(site: Site) -> int:
    return max(range(5), key=lambda c: len(site.board.membership.rows_of_cluster(c)))


def test_members_are_sorted_doubtful_ones_apart_and_the_photograph_shows_box_and_mask(
    browser: "Browser", site: Site
):
    cluster = largest_cluster(site)
    members = site.board.membership
    rows = members.rows_of_cluster(cluster)
    doubtful = members.is_doubtful(rows)
    with open_address(browser, f"{site.address}#/place/{cluster}") as opened:
        page = opened.page
        page.wait_for_selector(".member")
        for part, chosen in (("#sure", rows[~doubtful]), ("#doubtful", rows[doubtful])):
            shown = page.locator(f"{part} input").evaluate_all("all => all.map(i => i.ariaLabel)")
            keys = ["/".join(map(str, members.key_of(row))) for row in chosen.tolist()]
            assert [words.split(",")[0] for words in shown] == [f"Select region {k}" for k in keys]
        assert 0 < doubtful.sum() < len(rows)
        page.locator(".member button").first.click()
        page.wait_for_selector("dialog[open] #mask")
        assert opened.undecoded_images() == []
        photograph = box_of(opened, ".photograph img")
        assert box_of(opened, "#mask") == photograph
        marked = box_of(opened, ".photograph rect")
        x0, y0, x1, y1 = members.boxes_xyxy[rows[~doubtful][0]].tolist()
        scale = photograph["width"] / 48
        assert marked["x"] - photograph["x"] == pytest.approx(x0 * scale, abs=3)
        assert marked["y"] - photograph["y"] == pytest.approx(y0 * scale, abs=3)
        assert marked["width"] == pytest.approx((x1 - x0) * scale, abs=5)
        assert marked["height"] == pytest.approx((y1 - y0) * scale, abs=5)
        first = page.get_attribute("#mask", "src")
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "src => document.getElementById('mask').getAttribute('src') != src", arg=first
        )
        assert page.get_attribute("#mask", "src") == "mask/{}/{}".format(
            *members.key_of(int(rows[~doubtful][1]))
        )
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="hidden")
        assert opened.complaints == []


def test_selected_members_are_moved_by_mouse_and_by_keyboard(browser: "Browser", site: Site):
    cluster = largest_cluster(site)
    with open_address(browser, f"{site.address}#/place/{cluster}") as opened:
        page = opened.page
        page.wait_for_selector(".member")
        number = page.locator(".member").count()

        def wait_for_members(left: int) -> None:
            page.wait_for_function(
                "n => document.querySelectorAll('.member').length == n", arg=left
            )

        page.locator(".member input").nth(0).check()
        page.locator(".member input").nth(2).click(modifiers=["Shift"])
        assert page.inner_text("#selection strong") == "3 selected"
        page.keyboard.press("x")
        wait_for_members(number - 3)
        moved = read_decisions(site.board.store.path).moved
        assert list(moved.values()) == [NOT_AN_OBJECT] * 3
        page.locator(".member input").nth(0).check()
        page.keyboard.press("m")
        page.keyboard.type("teapot")
        page.keyboard.press("Enter")
        wait_for_members(number - 4)
        page.locator(".member input").nth(0).focus()
        page.keyboard.press("Space")
        page.click("#new-cluster")
        wait_for_members(number - 5)
        page.locator(".member input").nth(0).check()
        page.fill("input[name=target]", "novel_0006")
        page.keyboard.press("Enter")
        wait_for_members(number - 6)
        assert sorted(read_decisions(site.board.store.path).moved.values()) == [-1, -1, -1, 5, 6, 6]
        page.keyboard.press("a")
        assert page.inner_text("#selection strong") == f"{number - 6} selected"
        page.click("#clear")
        page.click("nav >> text=Clusters")
        wait_for_text(opened, "#novel_0005 h3", "teapot")
        wait_for_text(opened, "#novel_0006 .soft", "2 regions")
        page.click("nav >> text=Aside")
        page.locator("h3", has_text="not an object").locator("a").click()
        wait_for_members(3)
        page.keyboard.press("a")
        page.click("#move-back")
        wait_for_members(0)
        page.goto(f"{site.address}#/place/{cluster}")
        wait_for_members(number - 3)
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


@pytest.fixture
def offered(tmp_path: Path, bank: Bank, heads: DiscoveryHeads) -> Iterator[Site]:
    """A page with suggestions for clusters 0 to 3, and a region that was moved before."""
    names = {0: "mug", 1: "mug", 2: None, 3: "cup"}
    clusters = {c: Suggestion(c, name, 3, 4, 10, "“first”") for c, name in names.items()}
    with serve(tmp_path, bank, heads, carried=CarriedOver(clusters, {(1, 0): None})) as served:
        yield served


def test_what_was_decided_before_is_suggested_and_accepted_by_clicks_alone(
    browser: "Browser", offered: Site
):
    def decisions() -> tuple[dict[int, str], set[int]]:
        found = read_decisions(offered.board.store.path)
        return dict(found.names), set(found.ignored)

    with open_address(browser, offered.address) as opened:
        page = opened.page
        page.wait_for_selector("#cards .card")
        assert page.inner_text("#novel_0003 .before") == "“cup” before, 75\u00a0%"
        page.click("nav >> text=From before (4)")
        wait_for_text(opened, "#earlier-0 p", "3 of its 4 regions (75\u00a0%) were “mug”")
        wait_for_text(opened, "#earlier-0 p", "That is 30\u00a0% of what was “mug”.")
        assert decisions() == ({}, set())
        page.click("#earlier-3 .refuse")
        page.wait_for_selector("#earlier-3", state="detached")
        page.click("#earlier-1 .accept")
        page.wait_for_selector("#earlier-1", state="detached")
        assert decisions() == ({1: "mug"}, set())
        page.click("#accept-all")
        wait_for_text(opened, "main", "All of it is decided.")
        assert decisions() == ({0: "mug", 1: "mug"}, {2})
        page.click(".accept-moves")
        page.wait_for_selector(".accept-moves", state="detached")
        assert read_decisions(offered.board.store.path).moved == {(1, 0): NOT_AN_OBJECT}
        page.click("#undo")
        page.wait_for_selector(".accept-moves")
        page.click("#undo")
        page.wait_for_selector("#earlier-2")
        assert decisions() == ({1: "mug"}, set())
        page.click("nav >> text=One by one")
        page.wait_for_selector(".before")
        page.keyboard.press("y")
        wait_for_text(opened, "#looked", "3 of 5 looked at")
        assert opened.complaints == []


def test_the_page_learns_what_others_decide_and_keeps_what_is_typed(opened: Watched, site: Site):
    opened.page.fill("#novel_0001 input[name=name]", "half a wo")
    assert site.decide("name", clusters=[4], name="kettle")[0] == 200
    wait_for_text(opened, "#novel_0004 h3", "kettle")
    assert opened.page.input_value("#novel_0001 input[name=name]") == "half a wo"
    opened.page.keyboard.type("rd")
    assert opened.page.input_value("#novel_0001 input[name=name]") == "half a word"
