import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.gallery.examples import Example, Panel
from rncdl.gallery.exemplars import Exemplar
from rncdl.gallery.page import (
    MAX_EXAMPLE_BYTES,
    Page,
    cluster_cards,
    encode_examples,
    exemplar_regions,
    render_page,
)
from rncdl.gallery.summaries import summarise_clusters
from rncdl.gallery.thumbnails import plan_thumbnails
from tests.gallery.made_up import (
    KNOWN,
    full_page,
    made_up_assigned,
    made_up_summaries,
    one_exemplar,
)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and that none is left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("tr", "td", "th") and self._open[-1] != tag:
            raise AssertionError(f"{self._open[-1]} is closed by {tag}")
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def html() -> str:
    pictures = [Image.new("RGB", (40, 40), "teal") for _ in range(4)]
    summaries = made_up_summaries(4, [one_exemplar(cluster) for cluster in range(4)])
    cards = cluster_cards(summaries, pictures, known=KNOWN)
    panel = Panel("RNCDL", Image.new("RGB", (90, 60)), 'Found "this" & that')
    examples = encode_examples([Example([panel], "a.jpg")])
    return render_page(full_page(cards, examples))


def embedded_clusters(html: str) -> list[dict[str, Any]]:
    found = re.search(r'id="cluster-data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_an_empty_page_is_a_page():
    html = render_page(Page(title="nothing", facts={}))
    tags = [tag for tag, _ in Elements(html).found]
    assert "h1" in tags
    assert "script" not in tags
    assert 'id="clusters"' not in html


def test_the_page_asks_nobody_for_anything(html: str):
    for tag, attributes in Elements(html).found:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", html)


def test_every_picture_is_said_in_words(html: str):
    elements = Elements(html).found
    pictures = [attributes for tag, attributes in elements if tag == "img"]
    assert [attributes["alt"] for attributes in pictures] == ['Found "this" & that']
    charts = [attributes for tag, attributes in elements if tag == "svg"]
    assert charts
    assert all(attributes["aria-label"] for attributes in charts)


def test_every_link_within_the_page_has_an_end_and_every_field_a_label(html: str):
    elements = Elements(html).found
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    links = {a["href"] for tag, a in elements if tag == "a" and a["href"] is not None}
    ends = {link[1:] for link in links if link is not None and not link.startswith("#novel_")}
    assert ends <= ids
    fields = sum(tag in ("select", "input") for tag, _ in elements)
    assert fields == sum(tag == "label" for tag, _ in elements)


def test_names_from_files_are_text_and_never_markup(html: str):
    assert "<b>hen</b>" not in html
    assert "&lt;b&gt;hen&lt;/b&gt;" in html
    assert {card["known"] for card in embedded_clusters(html)} <= set(KNOWN)


def test_without_an_evaluation_no_class_is_named(html: str):
    assert all("class" not in card for card in embedded_clusters(html))
    assert 'name="assigned"' not in html


def test_with_an_evaluation_a_cluster_says_what_it_stands_for():
    assigned = made_up_assigned(5)
    cards = cluster_cards(made_up_summaries(5, [[]] * 5), [], known=KNOWN, assigned=assigned)
    assert [card["class"] for card in cards] == ["yak 0", None, None, None, "yak 4"]
    assert [card["clear"] for card in cards] == [False, False, False, False, True]
    assert (cards[0]["count"], cards[0]["seen"]) == (4, 9)
    assert cards[0]["taken"] == [("cat", 5), ("yak 0", 4)]


def test_an_output_found_before_has_its_name_and_moves_no_clusters_number():
    assigned = made_up_assigned(5)
    assigned[1] = replace(assigned[1], is_known=False, found_name="found_0012")
    html = render_page(full_page([], [], assigned))
    table = html[html.index("What outputs stand for") :]
    outputs = re.findall(r"</span>(?:<a href=\"#(\w+)\">)?(\w+)(?:</a>)?</th>", table)
    assert outputs[:5] == [
        *(("", "known"), ("", "found_0012"), ("", "known")),
        *(("novel_0000", "novel_0000"), ("novel_0004", "novel_0004")),
    ]


def test_bars_are_drawn_against_the_largest_number_of_their_table(html: str):
    headline = html[html.index('<section id="headline">') :]
    shares = [float(share) for share in re.findall(r"--share: ([\d.]+)", headline)[:4]]
    assert shares == [1.0, 0.25, 0.5, 0.25]


def test_an_example_for_which_there_is_no_room_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rncdl.gallery.page.MAX_EXAMPLE_BYTES", 200)
    examples = [Example([Panel("RNCDL", Image.new("RGB", (90, 60)), "alt")], "a")] * 3
    assert len(encode_examples(examples)) < 3


def test_empty_clusters_and_lost_pictures_are_left_out():
    summaries = made_up_summaries(3, [one_exemplar(0), [], one_exemplar(2) + one_exemplar(3)])
    summaries.sizes[1] = 0
    pictures = [None, Image.new("RGB", (8, 8)), None]
    first, last = cluster_cards(summaries, pictures, known=KNOWN)
    assert (first["id"], first["kinds"], first["strip"]) == (0, "", "")
    assert (last["id"], last["kinds"]) == (2, "c")
    assert last["strip"].startswith("data:image/webp")


def test_exemplars_lead_to_their_boxes(bank: Bank, heads: DiscoveryHeads):
    found = summarise_clusters(bank, heads, exemplars={"random": 2})
    image_index, boxes = exemplar_regions(found, bank)
    exemplars = [one for of_cluster in found.exemplars for one in of_cluster]
    assert len(exemplars) == len(boxes) > 4
    for one, image, box in zip(exemplars, image_index, boxes, strict=True):
        assert image == one.image_index
        stored = bank.read_boxes(one.image_index, count=int(bank.counts()[one.image_index]))
        assert box.tolist() == stored[one.region].tolist()


def test_three_thousand_clusters_keep_within_the_budget():
    """Thumbnails of photographs at their worst: noise over a gradient, each another."""
    plan = plan_thumbnails(3000)
    rng = np.random.default_rng(0)
    slope = np.linspace(0, 160, plan.side_px)[:, None, None] + np.zeros((1, plan.side_px, 3))
    pictures = []
    for _ in range(300):
        grain = rng.normal(0, 25, slope.shape)
        pixels = (slope + rng.integers(0, 90, 3) + grain).clip(0, 255).astype(np.uint8)
        pictures.append(Image.fromarray(pixels))
    per_cluster = sum(plan.per_kind.values())
    exemplars = [
        [Exemplar(kind, 0, 0, 0.5) for kind, n in plan.per_kind.items() for _ in range(n)]
        for _ in range(3000)
    ]
    thumbnails = [pictures[i % 300] for i in range(3000 * per_cluster)]
    assigned = made_up_assigned(3000)
    summaries = made_up_summaries(3000, exemplars)
    cards = cluster_cards(summaries, thumbnails, known=KNOWN, assigned=assigned)
    drawings = [
        Image.fromarray(rng.integers(0, 255, (480, 480, 3), dtype=np.uint8)) for _ in range(6)
    ]
    panels = [[Panel(title, one, "alt") for title in ("truth", "RNCDL")] for one in drawings]
    examples = encode_examples([Example(of_image, "caption") for of_image in panels])
    assert len(examples) == 6
    uris = [picture.uri for example in examples for picture in example.panels]
    assert sum(map(len, uris)) <= MAX_EXAMPLE_BYTES
    html = render_page(full_page(cards, examples, assigned))
    assert len(embedded_clusters(html)) == 3000
    assert len(html.encode()) <= 6_000_000
