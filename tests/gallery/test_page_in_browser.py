"""The page in a real browser: it is read, sorted, filtered, walked through by keyboard, printed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from PIL import Image

from rncdl.classes import cluster_name
from rncdl.gallery.examples import Example, Panel
from rncdl.gallery.exemplars import Exemplar
from rncdl.gallery.page import cluster_cards, encode_examples, render_page
from rncdl.gallery.thumbnails import plan_thumbnails
from tests.browser import open_file
from tests.gallery.made_up import KNOWN, full_page, made_up_assigned, made_up_summaries

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NUM_CLUSTERS = 60
PAGE = 24
"""Clusters that are shown at first."""


def made_up_page(num_clusters: int) -> str:
    """A page of so many clusters, whose pictures repeat after `NUM_CLUSTERS`."""
    plan = plan_thumbnails(num_clusters)
    kinds = [kind for kind, number in plan.per_kind.items() for _ in range(number)]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (97, 2, 2, 3), dtype=np.uint8)
    swatches = [
        Image.fromarray(one).resize((plan.side_px, plan.side_px), Image.Resampling.BILINEAR)
        for one in pixels
    ]
    drawn = cluster_cards(
        made_up_summaries(NUM_CLUSTERS, [[Exemplar(k, 0, 0, 0.5) for k in kinds]] * NUM_CLUSTERS),
        [swatches[i % len(swatches)] for i in range(NUM_CLUSTERS * len(kinds))],
        known=KNOWN,
        assigned=made_up_assigned(NUM_CLUSTERS),
    )
    cards = [{**drawn[i % NUM_CLUSTERS], "id": i} for i in range(num_clusters)]
    drawing = swatches[0].resize((480, 480))
    panels = [Panel(title, drawing, f"{title}: nothing") for title in ("truth", "RNCDL")]
    examples = encode_examples([Example(panels, "a.jpg")])
    return render_page(full_page(cards, examples, made_up_assigned(num_clusters)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    out.write_text(made_up_page(NUM_CLUSTERS), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def clusters(path: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="cluster-data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found
    return json.loads(found[1])


def names(clusters: list[dict[str, Any]]) -> list[str]:
    return [cluster_name(cluster["id"]) for cluster in clusters]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_opens_without_complaint_in_its_colours(
    browser: "Browser", path: Path, colours: Literal["light", "dark"]
):
    with open_file(browser, path, colours=colours) as opened:
        assert opened.undecoded_images() == []
        assert opened.images_without_words() == 0
        paper, ink = opened.page.evaluate(
            "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
        )
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in (paper, ink)]
        assert (brightness[0] > 230) == (colours == "light")
        assert abs(brightness[0] - brightness[1]) > 180
        assert opened.complaints == []


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("promise", lambda c: -c["promise"]),
        ("size", lambda c: -c["size"]),
        ("confidence", lambda c: -c["confidence"]),
        ("coherence", lambda c: -c["coherence"]),
        ("likeness", lambda c: c["likeness"]),
        ("background", lambda c: c["background"]),
        ("id", lambda c: c["id"]),
    ],
)
def test_the_gallery_is_sorted_as_asked(
    browser: "Browser",
    path: Path,
    clusters: list[dict[str, Any]],
    order: str,
    key: Callable[[dict[str, Any]], float],
):
    with open_file(browser, path) as opened:
        if order != "promise":
            opened.page.select_option("select[name=order]", order)
        expected = sorted(clusters, key=lambda c: (key(c), c["id"]))
        assert opened.shown_clusters() == names(expected)[:PAGE]
        assert opened.complaints == []


def test_the_gallery_shows_what_is_asked_for(
    browser: "Browser", path: Path, clusters: list[dict[str, Any]]
):
    expected = sorted(clusters, key=lambda c: (-c["promise"], c["id"]))
    with open_file(browser, path) as opened:
        page = opened.page
        page.fill("input[name=find]", "YAK 8")
        assert opened.shown_clusters() == [cluster_name(8)]
        assert page.inner_text("#count") == f"1 of {NUM_CLUSTERS} clusters"
        assert page.inner_text(".card h3 .unclear") == "yak 8?"
        page.fill("input[name=find]", "novel_0013")
        assert opened.shown_clusters() == [cluster_name(13)]
        page.fill("input[name=find]", "no such thing")
        assert opened.shown_clusters() == []
        page.fill("input[name=find]", "")
        page.fill("input[name=likeness]", "50")
        page.fill("input[name=background]", "40")
        page.fill("input[name=regions]", "100000")
        assert opened.shown_clusters() == names(
            [
                c
                for c in expected
                if c["likeness"] <= 0.5 and c["background"] <= 0.4 and c["size"] >= 100_000
            ]
        )
        page.evaluate("document.getElementById('controls').reset()")
        page.select_option("select[name=assigned]", "yes")
        assert opened.shown_clusters() == names([c for c in expected if c["class"]])
        assert opened.complaints == []


def test_a_link_leads_to_its_cluster_even_where_it_was_filtered_out(browser: "Browser", path: Path):
    with open_file(browser, path) as opened:
        opened.page.fill("input[name=find]", "yak 8")
        opened.page.click('a[href="#novel_0056"]')
        opened.page.wait_for_selector("#novel_0056")
        assert opened.focused() == "novel_0056"
        box = opened.page.locator("#novel_0056").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 900
        assert opened.complaints == []


def test_everything_can_be_done_by_keyboard_alone(
    browser: "Browser", path: Path, clusters: list[dict[str, Any]]
):
    with open_file(browser, path) as opened:
        keyboard = opened.page.keyboard
        keyboard.press("Tab")
        assert opened.focused() == "skip"
        keyboard.press("Enter")
        opened.press_until("Tab", "order")
        keyboard.press("ArrowDown")
        largest = sorted(clusters, key=lambda c: (-c["size"], c["id"]))
        assert opened.shown_clusters() == names(largest)[:PAGE]
        opened.press_until("Tab", "find")
        keyboard.type("yak")
        assert len(opened.shown_clusters()) == NUM_CLUSTERS / 4
        for _ in range(3):
            keyboard.press("Backspace")
        num_fields, num_near = 4, 3
        for _ in range(num_fields + PAGE * num_near + 1):
            keyboard.press("Tab")
        assert opened.focused() == "more"
        keyboard.press("Enter")
        assert opened.focused() == names(largest)[PAGE]
        keyboard.press("Tab")
        nearest = largest[PAGE]["near"][0]
        assert opened.page.evaluate("document.activeElement.textContent") == cluster_name(nearest)
        keyboard.press("Enter")
        assert opened.focused() == cluster_name(nearest)
        assert opened.complaints == []


def test_a_printed_page_is_light_and_cuts_nothing_off(browser: "Browser", path: Path):
    with open_file(browser, path, colours="dark", media="print", width_px=720) as opened:
        page = opened.page
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") in (
            "rgb(255, 255, 255)"
        )
        assert not page.is_visible("#controls")
        assert not page.is_visible("nav")
        cut_off = "tables => tables.filter(e => e.scrollHeight > e.clientHeight + 1).length"
        assert page.eval_on_selector_all(".scroll", cut_off) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 720
        assert opened.complaints == []


def test_nothing_hangs_over_the_edge_of_a_phone(browser: "Browser", path: Path):
    with open_file(browser, path, width_px=360) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_of_three_thousand_clusters_one_page_is_built_at_first(browser: "Browser", tmp_path: Path):
    """With all of them, opening the report would take many seconds."""
    path = tmp_path / "report.html"
    path.write_text(made_up_page(3000), encoding="utf-8")
    with open_file(browser, path) as opened:
        assert opened.undecoded_images() == []
        assert len(opened.shown_clusters()) == PAGE
        assert opened.page.evaluate("document.images.length") < 3000
        assert opened.complaints == []
