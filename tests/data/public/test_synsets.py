import json
from pathlib import Path

import pytest

from rncdl.data.annotation_file import FileCategory, read_annotation_file
from rncdl.data.public.synsets import coco_synsets, names_by_synset, rename_coco_classes
from rncdl.errors import UserError
from tests.shared_data import shared_path


def test_no_classes_are_renamed_to_none():
    assert rename_coco_classes([], {}, Path("a.json")) == []
    assert names_by_synset([]) == {}


def test_the_table_has_cocos_80_classes_and_no_synset_twice():
    table = coco_synsets()
    assert len(table) == len(set(table.values())) == 80
    assert list(table)[:2] == ["person", "bicycle"]
    assert list(table)[-1] == "toothbrush"


def test_the_table_is_that_of_lvis():
    published = json.loads(shared_path("lvis", "coco_to_synset.json").read_text())
    assert coco_synsets() == {name: entry["synset"] for name, entry in published.items()}


def test_classes_take_lviss_name_where_their_synsets_meet():
    lvis = [FileCategory(5, "sofa", "sofa.n.01"), FileCategory(6, "sofa bed", "sofa.n.01")]
    coco = [FileCategory(63, "couch"), FileCategory(58, "hot dog")]

    renamed = rename_coco_classes(coco, names_by_synset(lvis), Path("a.json"))

    assert [(c.id, c.name, c.synset) for c in renamed] == [
        (63, "sofa", "sofa.n.01"),
        (58, "hot dog", "frank.n.02"),
    ]


def test_a_class_that_is_not_cocos_is_named_with_its_place():
    with pytest.raises(UserError, match=r"a\.json: \$\.categories\[0\]\.name 'coach'.*'couch'"):
        rename_coco_classes([FileCategory(1, "coach")], {}, Path("a.json"))


def test_real_lvis_classes_are_found_but_for_two():
    """The public sample is of v0.5, which lacks `oven` too; v1 has it."""
    real = read_annotation_file(shared_path("lvis", "lvis_val_100.json"))
    names = names_by_synset(real.categories)
    missing = {name for name, synset in coco_synsets().items() if synset not in names}
    assert missing == {"hot dog", "oven"}
