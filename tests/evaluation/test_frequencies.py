from rncdl.data.records import AnnotationSet
from rncdl.evaluation.frequencies import frequencies_from_training

from .made_up import make_truth


def training(*images_of_class: int) -> AnnotationSet:
    """Class c is shown in so many images, twice in each."""
    annotations = [
        {"image": image, "category": category, "box_xyxy": (0, 0, 9, 9)}
        for category, num_images in enumerate(images_of_class, start=1)
        for image in range(num_images)
        for _ in range(2)
    ]
    return make_truth(
        annotations, num_images=max(images_of_class, default=0), num_classes=len(images_of_class)
    )


def test_nothing_trained_has_no_frequency():
    assert frequencies_from_training(training(), training(1)) == {}
    assert frequencies_from_training(training(0, 1), training(1, 1)) == {2: "r"}


def test_bounds_count_images_not_annotations():
    found = frequencies_from_training(training(1, 10, 11, 100, 101), training(1, 1, 1, 1, 1, 1))
    assert found == {1: "r", 2: "r", 3: "c", 4: "c", 5: "f"}
