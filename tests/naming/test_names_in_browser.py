"""Names on the page, in a real browser: given, completed, merged, carried over, seen by others."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.board import known_place
from rncdl.naming.carrying import CarriedOver, Suggestion
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.store import read_decisions
from tests.browser import Watched, open_address
from tests.naming.browsing import name_card, wait_for_text
from tests.naming.served import KNOWN, Site, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCRIPT = "<img src=x onerror=\"document.title='hacked'\">"


def test_clusters_are_named_found_filtered_and_counted(opened: Watched, site: Site):
    page = opened.page
    name_card(opened, "novel_0003", "  mug ")
    wait_for_text(opened, "#novel_0003 h3", "mug")
    assert dict(read_decisions(site.board.store.path).names) == {3: "mug"}
    assert page.inner_text("#looked") == "1 of 5 looked at"
    page.select_option("select[name=show]", "named")
    assert opened.shown_clusters() == ["novel_0003"]
    page.select_option("select[name=show]", "unnamed")
    assert sorted(opened.shown_clusters()) == [f"novel_{c:04d}" for c in (0, 1, 2, 4)]
    page.click("#novel_0004 .ignore")
    page.wait_for_selector("#novel_0004", state="detached")
    page.select_option("select[name=show]", "ignored")
    assert opened.shown_clusters() == ["novel_0004"]
    page.click("#novel_0004 .ignore")
    page.wait_for_selector("#novel_0004", state="detached")
    page.select_option("select[name=show]", "open")
    page.fill("input[name=find]", "MUG")
    assert opened.shown_clusters() == ["novel_0003"]
    page.fill("input[name=find]", "")
    page.select_option("select[name=order]", "id")
    assert opened.shown_clusters() == [f"novel_{c:04d}" for c in range(5)]


def offered_names(opened: Watched) -> list[str]:
    return opened.page.eval_on_selector_all(
        "[role=option]", "all => all.filter(o => o.checkVisibility()).map(o => o.dataset.name)"
    )


def test_names_complete_as_one_types_known_classes_among_them(opened: Watched, site: Site):
    page = opened.page
    name_card(opened, "novel_0003", "Tree frog")
    wait_for_text(opened, "#novel_0003 h3", "Tree frog")
    field = "#novel_0001 input[name=name]"
    page.click(field)
    assert offered_names(opened) == []
    page.keyboard.press("ArrowDown")
    assert sorted(offered_names(opened)) == sorted(["Tree frog", *KNOWN])
    page.keyboard.type("  TR")
    assert offered_names(opened) == ["tree", "Tree frog"]
    assert page.get_attribute(field, "aria-expanded") == "true"
    page.keyboard.type("ee  F")
    assert offered_names(opened) == ["Tree frog"]
    page.keyboard.press("Escape")
    assert offered_names(opened) == []
    assert (page.input_value(field), opened.focused()) == ("  TRee  F", "name")
    page.keyboard.press("ArrowDown")
    chosen = page.get_attribute(field, "aria-activedescendant")
    assert page.get_attribute(f"#{chosen}", "data-name") == "Tree frog"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("dialog h2") == "Merge into “Tree frog”?"
    page.keyboard.press("Enter")
    wait_for_text(opened, "#novel_0001 h3", "Tree frog")
    page.fill("#novel_0002 input[name=name]", "og")
    assert offered_names(opened) == ["dog", "Tree frog"]
    page.click("[role=option] >> text=dog")
    page.click("#merge")
    wait_for_text(opened, "#novel_0002 h3 .known", "dog")
    names = read_decisions(site.board.store.path).names
    assert dict(names) == {1: "Tree frog", 2: "dog", 3: "Tree frog"}


def test_classes_without_a_name_are_no_names_that_are_offered(
    browser: "Browser", tmp_path: Path, bank: Bank, heads: DiscoveryHeads
):
    unnamed = ("found_0012", "found2_0003")
    with (
        serve(tmp_path, bank, heads, known=("car", *unnamed)) as site,
        open_address(browser, site.address) as watched,
    ):
        watched.page.wait_for_selector("#cards .card")
        watched.page.click("#novel_0001 input[name=name]")
        watched.page.keyboard.press("ArrowDown")
        assert offered_names(watched) == ["car"]
        cards = site.get("api/state")["cards"]
        likely = [one for one in cards if one.get("likeness", 0) >= 0.1]
        assert any(one["known"] in map(known_place, (1, 2)) for one in likely)
        chips = watched.page.locator(".chip").all_inner_texts()
        assert set(chips) <= {"car?"}
        watched.page.goto(f"{site.address}#/aside")
        for name in unnamed:
            wait_for_text(watched, "h3", name)


def test_a_merge_shows_that_the_side_without_a_name_goes_into_the_named_one(
    opened: Watched, site: Site
):
    page = opened.page
    sizes = [len(site.board.membership.rows_of_cluster(c)) for c in range(5)]

    def sides() -> list[str]:
        return page.locator("dialog .sides h3").all_inner_texts()

    name_card(opened, "novel_0001", "mug")
    wait_for_text(opened, "#novel_0001 h3", "mug")
    name_card(opened, "novel_0001", "NOVEL_0002")
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("dialog h2") == "Merge into “mug”?"
    assert sides() == ["novel_0002", "mug"]
    assert page.locator("#swap").count() == 0
    page.click("#merge")
    wait_for_text(opened, "#novel_0002 h3", "mug")
    assert dict(read_decisions(site.board.store.path).names) == {1: "mug", 2: "mug"}
    name_card(opened, "novel_0003", "mug")
    page.wait_for_selector("dialog[open]")
    assert sides() == ["novel_0003", "mug"]
    whole = f"{sizes[1] + sizes[2]} regions of 2 clusters"
    assert page.locator("dialog .sides .soft").all_inner_texts() == [f"{sizes[3]} regions", whole]
    page.click("#apart")
    name_card(opened, "novel_0003", "novel_0004")
    page.click("#swap")
    assert sides() == ["novel_0004", "novel_0003"]
    page.click("#merge")
    page.wait_for_selector("dialog", state="hidden")
    names = read_decisions(site.board.store.path).names
    assert {names[3], names[4]} == {"novel_0003"}


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


def test_of_two_tabs_the_second_does_not_overwrite_what_the_first_decided(
    browser: "Browser", opened: Watched, site: Site
):
    with open_address(browser, site.address) as second:
        second.page.wait_for_selector("#cards .card")
        # It has not yet asked for news when it decides.
        second.page.evaluate("for (let i = 0; i < 1000; i += 1) clearInterval(i)")
        name_card(opened, "novel_0001", "mug")
        wait_for_text(opened, "#novel_0001 h3", "mug")
        name_card(second, "novel_0001", "jug")
        wait_for_text(second, "#message", "Somebody has changed this meanwhile.")
        wait_for_text(second, "#novel_0001 h3", "mug")
        name_card(second, "novel_0002", "jug")
        wait_for_text(second, "#novel_0002 h3", "jug")
        wait_for_text(opened, "#novel_0002 h3", "jug")
        second.page.click("#undo")
        wait_for_text(opened, "#novel_0002 h3", "novel_0002")
    assert dict(read_decisions(site.board.store.path).names) == {1: "mug"}
