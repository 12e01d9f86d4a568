import numpy as np
import pytest

from rncdl.data.shapes.catalogue import list_classes
from rncdl.data.shapes.coco_files import describe_mask
from rncdl.data.shapes.objects import draw_object
from rncdl.data.shapes.scenes import MAX_SIDE, MIN_SIDE, draw_scene

KINDS = list_classes(20)


def _scene(class_indices, seed=0, image_px=128):
    rng = np.random.default_rng(seed)
    return draw_scene(KINDS, class_indices, image_px=image_px, rng=rng)


def test_a_scene_without_objects_is_a_backdrop():
    scene = _scene([])
    assert scene.image.shape == (128, 128, 3)
    assert scene.image.dtype == np.uint8
    assert scene.class_indices == []
    assert scene.masks == []


@pytest.mark.parametrize("seed", range(12))
def test_visible_masks_are_disjoint_and_never_empty(seed):
    scene = _scene([0, 3, 3, 7, 11, 15, 19], seed)
    assert len(scene.masks) == len(scene.class_indices) >= 3
    masks = np.stack(scene.masks)
    assert masks.dtype == bool
    assert masks.sum(axis=0).max() <= 1
    assert masks.sum(axis=(1, 2)).min() >= 10


def test_crowded_scenes_leave_objects_out_rather_than_hide_them():
    scene = _scene(list(range(20)) * 5)
    assert 5 < len(scene.masks) < 100
    assert min(mask.sum() for mask in scene.masks) >= 10


def test_masks_lie_where_the_picture_changes():
    """Where objects are drawn, a picture differs from the bare backdrop of the same seed."""
    inside, outside = [], []
    for seed in range(10):
        bare, scene = _scene([], seed), _scene([2, 5, 8], seed)
        change = np.abs(scene.image.astype(int) - bare.image).sum(axis=2)
        mask = np.any(scene.masks, axis=0)
        inside.append(np.median(change[mask]))
        outside.append(np.median(change[~mask]))
    assert np.median(inside) > 4 * np.median(outside)


def test_scenes_scale_with_the_image():
    scene = _scene([1, 4, 9], image_px=256)
    assert scene.image.shape == (256, 256, 3)
    assert max(mask.sum() for mask in scene.masks) > 600


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_objects_have_the_side_asked_for_and_soft_edges(kind):
    rng = np.random.default_rng(1)
    for side_px in (128 * MIN_SIDE, 40.0, 128 * MAX_SIDE):
        sprite = draw_object(kind, side_px, light_deg=-60, rng=rng)
        rows, columns = np.nonzero(sprite.mask)
        longest = max(np.ptp(rows), np.ptp(columns)) + 1
        # Holes may cut away an outline's border: a crescent is narrower than its circle.
        assert 0.82 * side_px - 2 <= longest <= side_px + 1.5
        assert sprite.alpha.sum() == pytest.approx(sprite.mask.sum(), rel=0.2)
        assert ((sprite.alpha > 0.1) & (sprite.alpha < 0.9)).any()
        assert sprite.rgb.min() >= 0
        assert sprite.rgb.max() <= 1


def test_objects_of_a_class_vary():
    rng = np.random.default_rng(0)
    sprites = [draw_object(KINDS[0], 48, light_deg=-60, rng=rng) for _ in range(20)]
    assert len({sprite.alpha.shape for sprite in sprites}) > 5
    colours = np.array([sprite.rgb[:, sprite.mask].mean(axis=1) for sprite in sprites])
    assert colours.std(axis=0).min() > 0.03


def test_mask_description():
    mask = np.zeros((5, 7), dtype=bool)
    mask[1:4, 2] = mask[3, 2:6] = True
    described = describe_mask(mask)
    assert described["bbox"] == [2, 1, 4, 3]
    assert described["area"] == 6
    assert described["segmentation"]["size"] == [5, 7]
