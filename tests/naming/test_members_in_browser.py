"""A cluster's page in a real browser: its regions are looked at, moved and confirmed."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.naming.decisions import NOT_AN_OBJECT
from rncdl.naming.store import read_decisions
from tests.browser import Watched, open_address
from tests.naming.browsing import box_of, wait_for_text
from tests.naming.made_up import with_background
from tests.naming.served import IMAGE_WIDTH, KNOWN, Site, image_height, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def largest_cluster(site: Site) -> int:
    return max(range(5), key=lambda c: len(site.board.membership.rows_of_cluster(c)))


def test_members_are_sorted_by_certainty_doubtful_ones_apart(browser: "Browser", site: Site):
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
        assert opened.complaints == []


@pytest.mark.parametrize("width_px", [1280, 360])
def test_a_photograph_is_shown_whole_with_box_and_mask_and_leads_to_the_next(
    browser: "Browser", site: Site, width_px: int
):
    cluster = largest_cluster(site)
    keys = [tuple(one["key"]) for one in site.get(f"api/members/{cluster}")["members"]]
    assert {image % 2 for image, _ in keys} == {0, 1}  # tall and wide ones
    address = f"{site.address}#/place/{cluster}"
    with open_address(browser, address, width_px=width_px) as opened:
        opened.page.locator(".member button").first.click()
        for image, region in keys:
            opened.page.wait_for_selector(f"dialog[open] #mask[src='mask/{image}/{region}']")
            assert opened.undecoded_images() == []
            require_marked(opened, site, (image, region))
            opened.page.keyboard.press("ArrowRight")
        opened.page.keyboard.press("Escape")
        opened.page.wait_for_selector("dialog", state="hidden")
        assert opened.complaints == []


def require_marked(opened: Watched, site: Site, key: tuple[int, int]) -> None:
    """The photograph has its own proportions, fits the screen, and the box lies where it is."""
    photograph, marked = box_of(opened, ".photograph img"), box_of(opened, ".photograph rect")
    assert box_of(opened, "#mask") == photograph
    scale = photograph["width"] / IMAGE_WIDTH
    assert photograph["height"] == pytest.approx(image_height(key[0]) * scale, abs=1)
    viewport = opened.page.viewport_size
    assert viewport is not None
    assert photograph["x"] >= 0
    assert photograph["x"] + photograph["width"] <= viewport["width"]
    assert photograph["height"] <= viewport["height"]
    row = site.board.membership.row_of(key)
    assert row is not None
    x0, y0, x1, y1 = site.board.membership.boxes_xyxy[row].tolist()
    assert marked["x"] - photograph["x"] == pytest.approx(x0 * scale, abs=3)
    assert marked["y"] - photograph["y"] == pytest.approx(y0 * scale, abs=3)
    assert marked["width"] == pytest.approx((x1 - x0) * scale, abs=5)
    assert marked["height"] == pytest.approx((y1 - y0) * scale, abs=5)


def wait_for_members(opened: Watched, number: int) -> None:
    opened.page.wait_for_function(
        "n => document.querySelectorAll('.member').length == n", arg=number
    )


def test_selected_members_are_moved_by_mouse_and_by_keyboard(browser: "Browser", site: Site):
    cluster = largest_cluster(site)
    with open_address(browser, f"{site.address}#/place/{cluster}") as opened:
        page = opened.page
        page.wait_for_selector(".member")
        number = page.locator(".member").count()

        page.locator(".member input").nth(0).check()
        page.locator(".member input").nth(2).click(modifiers=["Shift"])
        assert page.inner_text("#selection strong") == "3 selected"
        page.keyboard.press("x")
        wait_for_members(opened, number - 3)
        moved = read_decisions(site.board.store.path).moved
        assert list(moved.values()) == [NOT_AN_OBJECT] * 3
        page.locator(".member input").nth(0).check()
        page.keyboard.press("m")
        page.keyboard.type("teapot")
        page.keyboard.press("Enter")
        wait_for_members(opened, number - 4)
        page.locator(".member input").nth(0).focus()
        page.keyboard.press("Space")
        page.click("#new-cluster")
        wait_for_members(opened, number - 5)
        page.locator(".member input").nth(0).check()
        page.fill("input[name=target]", "novel_0006")
        page.keyboard.press("Enter")
        wait_for_members(opened, number - 6)
        assert sorted(read_decisions(site.board.store.path).moved.values()) == [-1, -1, -1, 5, 6, 6]
        page.keyboard.press("a")
        assert page.inner_text("#selection strong") == f"{number - 6} selected"
        page.click("#clear")
        page.click("nav >> text=Clusters")
        wait_for_text(opened, "#novel_0005 h3", "teapot")
        wait_for_text(opened, "#novel_0006 .soft", "2 regions")
        page.click("nav >> text=Aside")
        page.locator("h3", has_text="not an object").locator("a").click()
        wait_for_members(opened, 3)
        page.keyboard.press("a")
        page.click("#move-back")
        wait_for_members(opened, 0)
        page.goto(f"{site.address}#/place/{cluster}")
        wait_for_members(opened, number - 3)
        assert opened.complaints == []


def test_members_that_belong_here_are_noted_as_checked(browser: "Browser", site: Site):
    cluster = largest_cluster(site)
    rows = site.board.membership.rows_of_cluster(cluster)
    first = site.get(f"api/members/{cluster}")["members"][:2]
    with open_address(browser, f"{site.address}#/place/{cluster}") as opened:
        page = opened.page
        page.locator(".member input").nth(0).check()
        page.locator(".member input").nth(1).check()
        page.keyboard.press("c")
        page.locator(".member", has_text="by hand").nth(1).wait_for()
        wait_for_members(opened, len(rows))
        moved = read_decisions(site.board.store.path).moved
        assert moved == {tuple(one["key"]): cluster for one in first}
        assert opened.complaints == []


def test_regions_that_a_known_class_took_can_be_moved(browser: "Browser", site: Site):
    known = max(range(len(KNOWN)), key=lambda k: len(site.board.membership.rows_of_output(k)))
    number = len(site.board.membership.rows_of_output(known))
    with open_address(browser, f"{site.address}#/aside") as opened:
        page = opened.page
        page.locator("h3", has_text=KNOWN[known]).locator("a").click()
        wait_for_members(opened, number)
        assert page.locator("#confirm").count() == 0
        page.locator(".member input").nth(0).check()
        page.keyboard.press("m")
        page.keyboard.type("van")
        page.keyboard.press("Enter")
        wait_for_members(opened, number - 1)
        page.click("nav >> text=Clusters")
        wait_for_text(opened, "#novel_0005 h3", "van")
        assert list(read_decisions(site.board.store.path).moved.values()) == [5]
        assert opened.complaints == []


@pytest.fixture
def taught(tmp_path: Path, bank: Bank, heads: DiscoveryHeads) -> Iterator[Site]:
    """A page of heads that take some regions for no object."""
    with serve(tmp_path, bank, with_background(heads)) as served:
        yield served


def test_regions_taken_for_no_object_have_a_place_the_doubtful_ones_first(
    browser: "Browser", taught: Site
):
    place = taught.board.taken_for_nothing
    told = taught.get(f"api/members/{place}")["members"]
    doubtful = [one["doubtful"] for one in told]
    assert doubtful == sorted(doubtful, reverse=True)
    assert 0 < sum(doubtful) < len(doubtful)
    with open_address(browser, f"{taught.address}#/aside") as opened:
        page = opened.page
        page.locator("h3", has_text="taken for no object").locator("a").click()
        wait_for_members(opened, len(told))
        page.locator("#doubtful input").nth(0).check()
        page.click("#new-cluster")
        wait_for_members(opened, len(told) - 1)
        assert read_decisions(taught.board.store.path).moved == {tuple(told[0]["key"]): 5}
        page.goto(f"{taught.address}#/place/5")
        wait_for_members(opened, 1)
        assert page.locator(".candidate").count() == 0
        page.keyboard.press("a")
        page.click("#move-back")
        wait_for_members(opened, 0)
        page.goto(f"{taught.address}#/place/{place}")
        wait_for_members(opened, len(told))
        assert opened.complaints == []
    assert taught.decide("merge", cluster=0, into=place)[0] == 400
