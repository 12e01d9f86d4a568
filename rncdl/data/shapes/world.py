"""The whole drawn world on disk: pictures and the four annotation files."""

import json
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rncdl.data.image_paths import list_images
from rncdl.data.shapes.catalogue import (
    MAX_CLASSES,
    ObjectClass,
    choose_known_ranks,
    divide_objects,
    list_classes,
    long_tail_shares,
)
from rncdl.data.shapes.coco_files import FILE_NAMES, DrawnImage, compose_files, describe_mask
from rncdl.data.shapes.scenes import Look, draw_scene
from rncdl.data.shapes.styles import STYLES
from rncdl.errors import UserError
from rncdl.training.interruption import block_stop_signals, sparing_children

_DRAWING_VERSION = 2
"""Goes up whenever the same settings give other bytes."""
_MIN_OBJECTS, _MAX_OBJECTS = 2, 6
_FINISHED, _UNFINISHED = "world.json", "world.unfinished"


@dataclass(frozen=True)
class World:
    """What a drawn world is like; everything its bytes depend on."""

    num_classes: int = 20
    num_known: int = 8
    image_px: int = 128
    num_labelled: int = 1200
    num_unlabelled: int = 1200
    num_val: int = 300
    imbalance: float = 10.0
    """how many times more objects the most frequent class has than the rarest"""
    seed: int = 0
    num_styles: int = 1
    """in how many manners each class is drawn; more make the world harder"""
    photographs: Path | None = None
    """a folder of them, to lie behind the objects instead of paper; harder, too"""

    @property
    def num_images(self) -> int:
        """Of all three parts."""
        return self.num_labelled + self.num_unlabelled + self.num_val

    def noted(self) -> dict[str, Any]:
        """What `world.json` holds: of the harder worlds' settings only those in use."""
        values = {**asdict(self), "drawing_version": _DRAWING_VERSION}
        if self.num_styles == 1:
            del values["num_styles"]
        if self.photographs is None:
            del values["photographs"]
        else:
            values["photographs"] = str(self.photographs.resolve())
        return values


@dataclass(frozen=True)
class _Plan:
    """One picture to draw: everything its bytes depend on, so that any process may draw it."""

    id: int
    file_name: str
    class_indices: tuple[int, ...]


def draw_world(
    out_dir: Path,
    world: World = World(),  # noqa: B008 -- frozen
    *,
    num_processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """A dataset in `out_dir`: `images/`, labelled, unlabelled, val and oracle json, `world.json`.

    `labelled.json` holds the known classes alone, `unlabelled.json` images alone, `val.json` all
    classes with LVIS's fields, `oracle.json` all classes of all training images. `num_processes`
    (default: all cores) changes nothing but the time; `progress` hears (drawn, total) pictures.
    A finished world with the same settings is left as it is.
    """
    _check_settings(world)
    try:
        if _is_finished(out_dir, world):
            return
        _start_afresh(out_dir)
        _draw(out_dir, world, num_processes=num_processes, progress=progress)
        _write_json(out_dir / _FINISHED, world.noted())
        (out_dir / _UNFINISHED).unlink()
    except OSError as error:
        place = error.filename or out_dir
        raise UserError(
            f"{place}: cannot write the drawn world ({error.strerror or error}). "
            "Choose a writable directory with enough room."
        ) from error


def _check_settings(s: World) -> None:
    bounds = {
        "num_classes": (2, MAX_CLASSES),
        "num_known": (1, s.num_classes - 1),
        "image_px": (64, 1024),
        "num_labelled": (1, 10**6),
        "num_unlabelled": (1, 10**6),
        "num_val": (1, 10**6),
        "imbalance": (1, 10**4),
        "seed": (0, 2**63 - 1),
        "num_styles": (1, len(STYLES)),
    }
    for name, (low, high) in bounds.items():
        value = getattr(s, name)
        if not low <= value <= high:
            raise UserError(f"Drawn world: {name} = {value} must lie in {low} to {high}.")


def _is_finished(out_dir: Path, world: World) -> bool:
    """True for a finished world of these settings; refuses any other non-empty directory."""
    if not out_dir.exists() or not any(out_dir.iterdir()) or (out_dir / _UNFINISHED).is_file():
        return False
    try:
        found = json.loads((out_dir / _FINISHED).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        found = None
    if not isinstance(found, dict) or "drawing_version" not in found:
        raise UserError(f"{out_dir}: not empty and not a drawn world. Choose another directory.")
    wanted = world.noted()
    changed = [
        f"{k} = {found.get(k)} there, {wanted.get(k)} here"
        for k in sorted(found.keys() | wanted.keys())
        if found.get(k) != wanted.get(k)
    ]
    if changed:
        raise UserError(
            f"{out_dir}: holds a drawn world of other settings ({'; '.join(changed)}). "
            "Delete it or choose another directory."
        )
    return True


def _start_afresh(out_dir: Path) -> None:
    """An empty `images/` and a marker which says that what is here is not finished."""
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / _UNFINISHED).touch()
    for name in (*FILE_NAMES, _FINISHED):
        (out_dir / name).unlink(missing_ok=True)
    if (out_dir / "images").exists():
        shutil.rmtree(out_dir / "images")
    (out_dir / "images").mkdir()


def _draw(
    out_dir: Path,
    s: World,
    *,
    num_processes: int | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Draw every picture, then write the annotation files."""
    kinds = list_classes(s.num_classes)
    known, plans = _plan_world(s)
    found = () if s.photographs is None else tuple(list_images(s.photographs.resolve()))
    draw = partial(
        _draw_image,
        kinds=kinds,
        out_dir=out_dir,
        image_px=s.image_px,
        seed=s.seed,
        look=Look(found, s.num_styles),
    )
    images: list[DrawnImage] = []
    # Closed, so that an interruption cancels what is still waiting to be drawn.
    with closing(_map_in_order(draw, plans, num_processes or _num_cores())) as finished:
        for image in finished:
            images.append(image)
            if progress is not None:
                progress(len(images), len(plans))

    num_training = s.num_labelled + s.num_unlabelled
    files = compose_files(
        kinds,
        known,
        labelled=images[: s.num_labelled],
        unlabelled=images[s.num_labelled : num_training],
        val=images[num_training:],
    )
    for name, content in files.items():
        _write_json(out_dir / name, content)


def _plan_world(s: World) -> tuple[list[int], list[_Plan]]:
    """The known class indices, and every picture: labelled, unlabelled, then validation."""
    rng = np.random.default_rng(s.seed)
    class_of_rank = rng.permutation(s.num_classes)
    known = class_of_rank[choose_known_ranks(s.num_classes, s.num_known, rng=rng)]
    shares = np.empty(s.num_classes)
    shares[class_of_rank] = long_tail_shares(s.num_classes, s.imbalance)
    plans: list[_Plan] = []
    sizes = {"labelled": s.num_labelled, "unlabelled": s.num_unlabelled, "val": s.num_val}
    for split, num_images in sizes.items():
        plans += _plan_images(split, num_images, shares=shares, first_id=len(plans) + 1, rng=rng)
    return sorted(known.tolist()), plans


def _plan_images(
    split: str,
    num_images: int,
    *,
    shares: np.ndarray,
    first_id: int,
    rng: np.random.Generator,
) -> list[_Plan]:
    """The split's pictures, the classes dealt out by their shares."""
    num_objects = rng.integers(_MIN_OBJECTS, _MAX_OBJECTS + 1, num_images)
    counts = divide_objects(shares, int(num_objects.sum()))
    deck = rng.permutation(np.repeat(np.arange(len(shares)), counts))
    hands = np.split(deck, np.cumsum(num_objects)[:-1])
    return [
        _Plan(first_id + n, f"images/{split}_{n:06d}.jpg", tuple(hand.tolist()))
        for n, hand in enumerate(hands)
    ]


def _draw_image(
    plan: _Plan,
    *,
    kinds: Sequence[ObjectClass],
    out_dir: Path,
    image_px: int,
    seed: int,
    look: Look,
) -> DrawnImage:
    rng = np.random.default_rng([seed, plan.id])
    scene = draw_scene(kinds, plan.class_indices, image_px=image_px, rng=rng, look=look)
    Image.fromarray(scene.image).save(out_dir / plan.file_name, quality=95, subsampling=0)
    return DrawnImage(
        id=plan.id,
        file_name=plan.file_name,
        side_px=image_px,
        class_indices=tuple(scene.class_indices),
        outlines=tuple(describe_mask(mask) for mask in scene.masks),
    )


def _map_in_order(
    draw: Callable[[_Plan], DrawnImage], plans: Sequence[_Plan], num_processes: int
) -> Generator[DrawnImage, None, None]:
    if num_processes == 1:
        yield from map(draw, plans)
        return
    with ProcessPoolExecutor(num_processes, initializer=block_stop_signals) as pool:
        with sparing_children():
            drawn = pool.map(draw, plans, chunksize=16)
        yield from drawn


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write_json(path: Path, content: Any) -> None:
    """Write all of the file or nothing."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)
