"""The pictures of README, from the output folder of `rncdl demo`.

    python docs/make_pictures.py demo --out docs/images

writes `scenes.jpg`, the first validation images; `clusters.jpg`, the clusters that come first in
the report's gallery, each with its most typical regions (one an image), its name, and the class
that evaluation gave it with its share of the annotated boxes that the cluster took; and
`predictions.jpg`, the truth, the fully supervised detector and the discovery side by side on
images spread evenly over the validation set. Nothing is picked by hand.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rncdl.classes import cluster_name
from rncdl.config import Settings, change
from rncdl.detector.model import Detector
from rncdl.discovery.bank import Bank
from rncdl.discovery.heads import DiscoveryHeads
from rncdl.gallery.findings import AssignedRow, read_assigned
from rncdl.gallery.page import exemplar_regions
from rncdl.gallery.summaries import summarise_clusters
from rncdl.gallery.thumbnails import cut_thumbnails, join_strip
from rncdl.inputs import load_dataset, load_pool
from rncdl.models import load_detector, load_heads
from rncdl.prediction.classifier import discovery_classifier, for_drawings
from rncdl.run_folder import RunFolder
from rncdl.stages.report import assigned_names
from rncdl.stages.report_drawings import ComparedImages, DrawnDetector, draw_comparison

NUM_SCENES = (6, 2)
PANEL_GAP_PX = 8
TITLE_COLOUR = (128, 128, 128)
SCENE_PX = 192
NUM_CLUSTERS = 8
NUM_REGIONS = 6
NUM_COLUMNS = 2
NUM_EXAMPLES = 3
REGION_PX = 96
GAP_PX = 16
TEXT_PX = 20
QUALITY = 88

INK, SOFT, RED, PAPER = (29, 35, 39), (91, 101, 108), (199, 54, 44), (255, 255, 255)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description="The pictures of README, from a demo's output.")
    parser.add_argument("demo", type=Path, help="the output folder of `rncdl demo`")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where they go")
    parser.add_argument("--discovery", default="main", help="its name; default: main")
    arguments = parser.parse_args()
    make_pictures(arguments.demo, arguments.out, name=arguments.discovery)


def make_pictures(demo: Path, out: Path, *, name: str = "main") -> list[Path]:
    """The files that were written."""
    run = RunFolder(demo / "run")
    settings = change(run.discovery(name).settings(), data={"workers": 0})
    detector = load_detector(run, settings, run.split(), discovery=name)
    heads = load_heads(run, detector, name).eval()
    folder = run.evaluation("val", name)
    assigned = read_assigned(folder.assignment("head0_fixed"), folder.confusion("head0"))
    pictures = {
        "scenes.jpg": draw_scenes(demo / "world" / "val.json"),
        "clusters.jpg": draw_clusters(run, name, detector, heads, assigned, settings=settings),
        "predictions.jpg": draw_predictions(demo, detector, heads, assigned, settings=settings),
    }
    out.mkdir(parents=True, exist_ok=True)
    for file_name, picture in pictures.items():
        picture.save(out / file_name, quality=QUALITY)
        print(f"{out / file_name}: {picture.width} x {picture.height} px")
    return [out / file_name for file_name in pictures]


def draw_scenes(val: Path) -> Image.Image:
    """The first images of a dataset, as they are."""
    images = load_dataset(val, None, shown=False).images[: NUM_SCENES[0] * NUM_SCENES[1]]
    side = (SCENE_PX, SCENE_PX)
    tiles = [Image.open(image.path).convert("RGB").resize(side) for image in images]
    return _stack(tiles, num_columns=NUM_SCENES[0])


def draw_clusters(
    run: RunFolder,
    name: str,
    detector: Detector,
    heads: DiscoveryHeads,
    assigned: Sequence[AssignedRow],
    *,
    settings: Settings,
) -> Image.Image:
    """The first clusters of the gallery, in rows of `NUM_COLUMNS`."""
    inputs = run.discovery(name).inputs()
    if inputs is None:
        raise SystemExit(f"{run.path}: discovery {name} did not note its images.")
    bank = Bank(run.bank_dir)
    classifier = discovery_classifier(detector, heads, run.split().known, predict=settings.predict)
    summaries = summarise_clusters(
        bank,
        heads,
        exemplars={"typical": NUM_REGIONS},
        known=classifier.known,
    )
    pool = load_pool(run, inputs, settings=settings, shown=False)
    image_index, boxes_xyxy = exemplar_regions(summaries, bank)
    ends = np.cumsum([len(of_cluster) for of_cluster in summaries.exemplars])
    tiles = []
    for cluster in np.argsort(-summaries.promise, kind="stable")[:NUM_CLUSTERS].tolist():
        rows = slice(ends[cluster] - len(summaries.exemplars[cluster]), ends[cluster])
        cut = cut_thumbnails(pool.images, image_index[rows], boxes_xyxy[rows], side_px=REGION_PX)
        thumbnails = [one for one in cut if one is not None]
        if thumbnails:
            tiles.append(_tile(thumbnails, cluster, assigned[heads.num_known + cluster]))
    return _stack(tiles, num_columns=NUM_COLUMNS)


def draw_predictions(
    demo: Path,
    detector: Detector,
    heads: DiscoveryHeads,
    assigned: Sequence[AssignedRow],
    *,
    settings: Settings,
) -> Image.Image:
    """Truth, ceiling and discovery on some of the report's examples, evenly spread over them."""
    known = RunFolder(demo / "run").split().known
    classifier = discovery_classifier(detector, heads, known, predict=settings.predict)
    named = for_drawings(classifier).renamed(assigned_names(classifier, assigned))
    ours = DrawnDetector("RNCDL", detector, named)
    compared = ComparedImages(demo / "world" / "val.json", supervised=RunFolder(demo / "ceiling"))
    examples = draw_comparison(ours, compared, known, settings=settings)
    every = -(-len(examples) // NUM_EXAMPLES)
    rows = [
        _side_by_side(
            [panel.drawing for panel in example.panels],
            [panel.title for panel in example.panels],
        )
        for example in examples[::every]
    ]
    return _stack(rows, num_columns=1)


def _side_by_side(panels: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """The panels in a row, as high as the highest, each under its title."""
    highest_px = max(panel.height for panel in panels)
    text_px = max(12, round(highest_px / 34))
    font, title_px = ImageFont.load_default(text_px), round(1.8 * text_px)
    width = sum(panel.width for panel in panels) + PANEL_GAP_PX * (len(panels) - 1)
    row = Image.new("RGB", (width, highest_px + title_px), PAPER)
    pen = ImageDraw.Draw(row)
    left = 0
    for panel, title in zip(panels, titles, strict=True):
        row.paste(panel, (left, title_px))
        pen.text((left + panel.width / 2, title_px / 2), title, TITLE_COLOUR, font, anchor="mm")
        left += panel.width + PANEL_GAP_PX
    return row


def _tile(thumbnails: list[Image.Image], cluster: int, row: AssignedRow) -> Image.Image:
    """A row of regions under the cluster's name and class."""
    strip = join_strip(thumbnails)
    tile = Image.new("RGB", (REGION_PX * NUM_REGIONS, REGION_PX + TEXT_PX + 8), PAPER)
    tile.paste(strip, (0, TEXT_PX + 8))
    pen = ImageDraw.Draw(tile)
    font = ImageFont.load_default(TEXT_PX)
    middle = TEXT_PX / 2 + 2
    pen.text((0, middle), cluster_name(cluster), INK, font, anchor="lm")
    said, colour = "no class", SOFT
    if row.name is not None:
        said = f"{row.name} ({row.count} of {row.size})"
        colour = RED if row.stands_out else SOFT
    pen.text((tile.width, middle), said, colour, font, anchor="rm")
    return tile


def _stack(tiles: Sequence[Image.Image], *, num_columns: int) -> Image.Image:
    """The tiles, of one size, row by row."""
    width, height = tiles[0].width + GAP_PX, tiles[0].height + GAP_PX
    num_rows = -(-len(tiles) // num_columns)
    sheet = Image.new("RGB", (width * num_columns + GAP_PX, height * num_rows + GAP_PX), PAPER)
    for position, tile in enumerate(tiles):
        row, column = divmod(position, num_columns)
        sheet.paste(tile, (GAP_PX + width * column, GAP_PX + height * row))
    return sheet


if __name__ == "__main__":
    main()
