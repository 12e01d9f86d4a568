"""COCO's classes and LVIS's: the same where their WordNet synsets are."""

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

import yaml

from rncdl.data.annotation_file import FileCategory
from rncdl.data.public.formats import NamedClass
from rncdl.errors import UserError, did_you_mean


def coco_synsets() -> dict[str, str]:
    """COCO's 80 class names -> WordNet synsets; COCO's own files have names only."""
    table = resources.files("rncdl").joinpath("data", "public", "coco_synsets.yaml")
    return yaml.safe_load(table.read_text("utf-8"))


def names_by_synset(categories: Iterable[FileCategory]) -> dict[str, str]:
    """Synset -> class name; the first class where several have one synset."""
    names: dict[str, str] = {}
    for category in categories:
        if category.synset:
            names.setdefault(category.synset, category.name)
    return names


def rename_coco_classes(
    coco: Iterable[FileCategory], lvis_names: Mapping[str, str], source: Path
) -> list[NamedClass]:
    """COCO's categories, ids kept, under the names that LVIS has for their synsets.

    A class that LVIS lacks (hot dog) keeps COCO's name. `lvis_names`: synset -> name.
    """
    synsets = coco_synsets()
    classes = []
    for index, category in enumerate(coco):
        synset = synsets.get(category.name)
        if synset is None:
            raise UserError(
                f"{source}: $.categories[{index}].name {category.name!r} is not one of COCO's "
                f"80 classes.{did_you_mean(category.name, synsets)}"
            )
        classes.append(
            NamedClass(category.id, lvis_names.get(synset, category.name), synset=synset)
        )
    return classes
