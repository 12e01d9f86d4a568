"""Every baseline on a tiny run: trained, asked about annotated boxes, asked for detections."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rncdl.config import resolve_settings
from rncdl.discovery.bank import Bank
from rncdl.experiments.baselines.methods import METHODS, BaselineTask
from rncdl.inputs import load_dataset
from rncdl.models import load_detector
from rncdl.prediction.annotated import look_at_annotations
from rncdl.prediction.classifier import LooksAtPixels, baseline_classifier
from rncdl.prediction.detections import Detections
from rncdl.prediction.inference import Inference, predict_images
from rncdl.run_folder import RunFolder
from rncdl.stages.discover import load_pool
from rncdl.training.processes import Processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))
QUICK = [
    *("baselines.crop_px=16", "baselines.steps=2", "baselines.batch_images=4"),
    *("baselines.crops_per_image=4", "baselines.uno_heads=2"),
]


@pytest.fixture(scope="module")
def task(discovered: Path) -> BaselineTask:
    run = RunFolder(discovered)
    settings = resolve_settings(base=run.discovery("main").settings(), overrides=QUICK)
    inputs = run.discovery("main").inputs()
    assert inputs is not None
    return BaselineTask(
        detector=load_detector(run, settings, run.split()).eval(),
        bank=Bank(run.bank_dir),
        pool=load_pool(run, inputs, settings=settings, shown=False),
        num_clusters=5,
        settings=settings,
        seed=0,
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_baseline_classifies_boxes_and_detects(name: str, task: BaselineTask, world: Path):
    # As another process would get it.
    outputs = pickle.loads(pickle.dumps(METHODS[name](task)))
    classifier = baseline_classifier(task.detector, outputs, "abc", num_clusters=5, score="softmax")
    truth = load_dataset(world / "val.json", None, shown=False)
    look = look_at_annotations(
        task.detector, truth, [classifier], settings=task.settings, processes=ALONE
    )
    assert set(look.outputs[0].tolist()) <= set(range(3 + 5))
    with torch.inference_mode():
        batches = list(
            predict_images(
                Inference(task.detector, [classifier], task.settings),
                truth.images,
                processes=ALONE,
            )
        )
    found = [Detections.of_images(batch.images, batch.regions[0]) for batch in batches]
    scores = np.concatenate([detections.scores for detections in found])
    assert len(scores) > 0
    assert np.isfinite(scores).all()
    assert scores.min() > 0
    assert scores.max() <= 1 + 1e-5


@pytest.mark.parametrize("name", ["orca", "uno"])
def test_baselines_on_region_features_can_be_handed_over(name: str, task: BaselineTask):
    settings = resolve_settings(base=task.settings, overrides=["baselines.features=bank"])
    classifier = METHODS[name](replace(task, settings=settings))
    assert not isinstance(classifier, LooksAtPixels)
    handed_over = pickle.loads(pickle.dumps(classifier))
    features = torch.randn(6, task.bank.shape.num_features).relu()
    with torch.no_grad():
        torch.testing.assert_close(handed_over(features), classifier(features))
