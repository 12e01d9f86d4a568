import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.gallery.exemplars import Exemplar
from rncdl.gallery.findings import AssignedRow, ClassRow, HeadlineRow, RecallTable
from rncdl.gallery.report import (
    MAX_EXAMPLE_BYTES,
    MAX_PAGE_BYTES,
    Evaluated,
    Page,
    cluster_cards,
    encode_examples,
    exemplar_regions,
    render_page,
    shares_chart,
)
from rncdl.gallery.summaries import ClusterSummaries, summarise_clusters
from rncdl.gallery.thumbnails import plan_thumbnails

KNOWN = ("cat", "dog", "<b>hen</b>")


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


def made_up_summaries(num_clusters: int, exemplars: list[list[Exemplar]]) -> ClusterSummaries:
    rng = np.random.default_rng(0)
    shares = rng.random(num_clusters)
    return ClusterSummaries(
        known_sizes=np.array([5, 6, 7]),
        sizes=rng.integers(1, 500_000, num_clusters),
        num_images=rng.integers(1, 100_000, num_clusters),
        confidence=shares,
        coherence=shares,
        background_share=shares,
        nearest_known=rng.integers(0, 3, num_clusters),
        known_likeness=shares,
        nearest_clusters=rng.integers(0, num_clusters, (num_clusters, 3)),
        exemplars=exemplars,
    )


def full_page(clusters: list[dict[str, Any]], examples: list[Any]) -> Page:
    row = HeadlineRow("RNCDL", 0.4, 0.1, 0.2, 0.1, None)
    evaluated = Evaluated(
        title="val",
        headline=[row],
        recall=RecallTable(["AR@50"], [("known", [0.5]), ("novel", [0.4]), ("all", [0.45])]),
        classes=[ClassRow("<b>hen</b>", True, 3, 0.5, None)] * 1200,
        assigned=[
            *(AssignedRow(k, True, name, 1, 2, 0.5) for k, name in enumerate(KNOWN)),
            AssignedRow(3, False, "yak", 4, 5, 0.8),
        ],
    )
    return Page(
        title="run: main",
        facts={"Known classes": "3"},
        comparison=[row],
        evaluations=[evaluated],
        examples=examples,
        clusters=clusters,
        shares=shares_chart(made_up_summaries(4, [[]] * 4), np.full(7, 1 / 7)),
        settings="seed: 0",
        versions={"rncdl": "1"},
    )


def one_exemplar(cluster: int) -> list[Exemplar]:
    return [Exemplar("confident", cluster, 0, 0.9)]


@pytest.fixture(scope="module")
def html() -> str:
    pictures = [Image.new("RGB", (40, 40), "teal") for _ in range(4)]
    summaries = made_up_summaries(4, [one_exemplar(cluster) for cluster in range(4)])
    cards = cluster_cards(summaries, pictures, known=KNOWN)
    examples = encode_examples([(Image.new("RGB", (90, 60)), 'Found "this" & that', "a.jpg")])
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
    assigned = [AssignedRow(k, True, name, 1, 2, 0.5) for k, name in enumerate(KNOWN)]
    assigned += [AssignedRow(3, False, None, 0, 1, 0.0), AssignedRow(4, False, "yak", 4, 5, 0.8)]
    summaries = made_up_summaries(2, [[], []])
    first, second = cluster_cards(summaries, [], known=KNOWN, assigned=assigned)
    assert (first["class"], second["class"]) == (None, "yak")
    assert (second["purity"], second["seen"]) == (0.8, 5)


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
    cards = cluster_cards(made_up_summaries(3000, exemplars), thumbnails, known=KNOWN)
    drawings = [
        (Image.fromarray(rng.integers(0, 255, (480, 480, 3), dtype=np.uint8)), "alt", "caption")
        for _ in range(12)
    ]
    examples = encode_examples(drawings)
    assert sum(len(picture.uri) for picture in examples) <= MAX_EXAMPLE_BYTES
    html = render_page(full_page(cards, examples))
    assert len(embedded_clusters(html)) == 3000
    assert len(html.encode()) <= MAX_PAGE_BYTES
