import pytest
import torch

from rncdl.errors import UserError
from rncdl.training.processes import (
    Processes,
    choose_device,
    choose_precision,
    join_processes,
    seed_step,
)

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def test_a_process_alone_is_the_main_one_and_agrees_with_itself():
    with join_processes("cpu") as processes:
        assert processes == ALONE
        assert processes.is_main
        assert not processes.any_true(False)
        assert processes.mean(torch.tensor([2.0])).item() == 2.0


def test_the_main_process_makes_things_with_the_cores_of_all(monkeypatch: pytest.MonkeyPatch):
    """And hands them over; the others make nothing."""
    given: list[object] = []

    def all_gather_object(items: list[object], item: object) -> None:
        given.append(item)
        items[:] = [-1, None]

    monkeypatch.setattr(torch.distributed, "all_gather_object", all_gather_object)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    before = torch.get_num_threads()
    for rank in range(2):
        pair = Processes(rank=rank, count=2, device=torch.device("cpu"))
        assert pair.from_main(torch.get_num_threads) == -1
    assert given == [2 * before, None]
    assert torch.get_num_threads() == before
    assert ALONE.from_main(lambda: "own") == "own"


def test_uneven_shares_are_refused():
    three = Processes(rank=1, count=3, device=torch.device("cpu"))
    assert three.share_of(12, what="train.batch_size") == 4
    with pytest.raises(UserError, match=r"train\.batch_size = 16 .* 3 processes"):
        three.share_of(16, what="train.batch_size")


@pytest.mark.parametrize("name", ["gpu", "cuda:99"])
def test_devices_that_do_not_exist_are_refused(name):
    if name.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match=name):
        choose_device(name)


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_each_process_takes_its_own_gpu_of_its_machine(name, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device(name) == torch.device("cuda:0")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(name) == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="at most 2 processes"):
        choose_device(name)


def test_one_gpu_by_its_number_is_for_one_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="use device=cuda"):
        choose_device("cuda:1")


def test_precision_is_full_on_cpu_unless_asked():
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu) == torch.float32
    assert choose_precision("bfloat16", cpu) == torch.bfloat16


def test_a_steps_randomness_depends_on_seed_step_and_rank_alone():
    draws: dict[tuple[int, int, int], list[float]] = {}
    for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]:
        seed_step(key[0], step=key[1], rank=key[2])
        draws.setdefault(key, []).append(torch.rand(1).item())
    assert draws[0, 0, 0][0] == draws[0, 0, 0][1]
    assert len({values[0] for values in draws.values()}) == 4
