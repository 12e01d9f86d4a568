from torch import nn

from rncdl.training.optimizer import make_sgd


def test_norm_layers_are_not_decayed_and_frozen_parameters_left_out():
    module = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.GroupNorm(1, 2), nn.Linear(2, 2)
    )
    module[3].weight.requires_grad = False

    optimizer = make_sgd(module, weight_decay=0.1)

    decayed = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert decayed == {
        id(module[0].weight): 0.1,
        id(module[0].bias): 0.1,
        id(module[1].weight): 0.0,
        id(module[1].bias): 0.0,
        id(module[2].weight): 0.0,
        id(module[2].bias): 0.0,
        id(module[3].bias): 0.1,
    }
