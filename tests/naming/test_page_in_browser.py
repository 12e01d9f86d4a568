"""The page in a real browser: clusters are named, merged, ignored, corrected."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.store import read_decisions
from tests.browser import Watched, open_address
from tests.naming.served import KNOWN, Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@pytest.mark.parametrize(("width_px", "colours"), [(1280, "light"), (1280, "dark"), (360, "light")])
def test_clusters_are_shown_the_most_promising_first(
    browser: "Browser", site: Site, width_px: int, colours: Literal["light", "dark"]
):
    with open_address(browser, site.address, width_px=width_px, colours=colours) as opened:
        opened.page.wait_for_selector("#cards .card")
        assert opened.shown_clusters() == expected_order(site)
        assert opened.undecoded_images() == []
        assert opened.images_without_words() == 0
        assert opened.page.inner_text("#looked") == "0 of 5 looked at"
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width_px
        assert opened.complaints == []


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


def test_members_are_moved_and_their_photograph_is_shown(browser: "Browser", site: Site):
    cluster = max(range(5), key=lambda c: len(site.board.membership.rows_of_cluster(c)))
    with open_address(browser, f"{site.address}#/place/{cluster}") as opened:
        page = opened.page
        page.wait_for_selector(".member")
        number = page.locator(".member").count()
        page.locator(".member button").first.click()
        page.wait_for_selector("dialog[open] .photograph rect")
        assert opened.undecoded_images() == []
        page.keyboard.press("Escape")
        page.locator(".member input").nth(0).check()
        page.locator(".member input").nth(1).check()
        page.click("#not-object")
        page.locator(".member").nth(number - 2).wait_for(state="detached")
        moved = read_decisions(site.board.store.path).moved
        assert list(moved.values()) == [NOT_AN_OBJECT, NOT_AN_OBJECT]
        page.locator(".member input").nth(0).check()
        page.fill("input[name=target]", "teapot")
        page.keyboard.press("Enter")
        page.locator(".member").nth(number - 3).wait_for(state="detached")
        page.click("nav >> text=Clusters")
        wait_for_text(opened, "#novel_0005 h3", "teapot")
        page.click("nav >> text=Aside")
        wait_for_text(opened, "h3", "not an object")
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


def test_the_page_learns_what_others_decide_and_keeps_what_is_typed(opened: Watched, site: Site):
    opened.page.fill("#novel_0001 input[name=name]", "half a wo")
    assert site.decide("name", cluster=4, name="kettle")[0] == 200
    wait_for_text(opened, "#novel_0004 h3", "kettle")
    assert opened.page.input_value("#novel_0001 input[name=name]") == "half a wo"
    opened.page.keyboard.type("rd")
    assert opened.page.input_value("#novel_0001 input[name=name]") == "half a word"
