import gc
import multiprocessing
import os
import socket
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from rncdl.discovery.training import Diverged
from rncdl.errors import UserError
from rncdl.training.processes import (
    Processes,
    _pack,
    _unpack,
    choose_device,
    choose_precision,
    join_processes,
    seed_step,
)
from tests.pipeline.tiny import HANGS_S
from tests.two_processes import run_in_two_processes

ALONE = Processes(rank=0, count=1, device=torch.device("cpu"))


def test_a_process_alone_is_the_main_one_and_agrees_with_itself():
    with join_processes("cpu") as processes:
        assert processes == ALONE
        assert processes.is_main
        assert not processes.any_true(False)
        assert processes.mean(torch.tensor([2.0])).item() == 2.0


def wait_without_a_collective(processes: Processes) -> bool:
    """Whether the other process waits in a collective while the main one makes something."""
    store = dist.distributed_c10d._get_default_store()
    broadcast = dist.broadcast_object_list

    def enter(*arguments: Any, **options: Any) -> None:
        store.set("in_a_collective", "yes")
        broadcast(*arguments, **options)

    def make() -> bool:
        store.wait(["arrived"])
        time.sleep(0.3)  # long enough for it to enter one
        return store.check(["in_a_collective"])

    if processes.is_main:
        return processes.from_main(make)
    store.set("arrived", "yes")
    with mock.patch.object(dist, "broadcast_object_list", enter):
        return processes.from_main(make)


def fail(error: Exception) -> None:
    raise error


def error_of(processes: Processes, error: Exception) -> Exception | None:
    try:
        processes.from_main(partial(fail, error))
    except Exception as found:
        return found
    return None


def exchange(processes: Processes) -> dict[str, Any]:
    """Everything the processes do together, once."""
    calls: list[str] = []

    def make() -> dict[str, Any]:
        calls.append("made")
        return {"weight": torch.full((2,), 1.5), "threads": torch.get_num_threads()}

    threads = torch.get_num_threads()
    made = processes.from_main(make)
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad = torch.tensor([[1.0, 2.0]]) * (processes.rank + 1)
    if processes.is_main:
        layer.bias.grad = torch.tensor([4.0])
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduced:
        processes.average_gradients(layer.parameters())
    return {
        "made": made,
        "times_made": len(calls),
        "exchanges": reduced.call_count,
        "threads": (threads, torch.get_num_threads()),
        "user_error": error_of(processes, UserError("the disk is full")),
        "diverged": error_of(processes, Diverged("not finite")),
        "other_error": error_of(processes, KeyError("lost")),
        "cannot_be_sent": error_of_unsendable(processes),
        "weight": layer.weight.grad,
        "bias": layer.bias.grad,
        "total": processes.total(processes.rank + 3),
        "waits_in_a_collective": wait_without_a_collective(processes),
    }


def error_of_unsendable(processes: Processes) -> Exception | None:
    """What comes of something that no other process could be given."""
    try:
        processes.from_main(lambda: lambda: 0)
    except Exception as found:
        return UserError(str(found)) if processes.is_main else found
    return None


def test_two_processes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    main, other = run_in_two_processes(exchange, tmp_path)
    # Made once, with the cores of both, and handed over.
    assert [main["times_made"], other["times_made"]] == [1, 0]
    for one in (main, other):
        assert one["made"]["weight"].tolist() == [1.5, 1.5]
        assert one["made"]["threads"] == 2 * one["threads"][0]
        assert one["threads"][0] == one["threads"][1]
        # However long the main process takes, nobody waits for it in a collective.
        assert one["waits_in_a_collective"] is False
        # An error of the main process is everybody's, and none is left waiting.
        assert isinstance(one["user_error"], UserError)
        assert str(one["user_error"]) == "the disk is full"
        assert isinstance(one["diverged"], Diverged)
        assert isinstance(one["cannot_be_sent"], UserError)
        # Gradients are averaged in one exchange; one that a process lacks counts as zero there.
        assert one["weight"].tolist() == [[1.5, 3.0]]
        assert one["bias"].tolist() == [2.0]
        assert one["exchanges"] == 1
        assert one["total"] == 7
    assert isinstance(main["other_error"], KeyError)
    assert isinstance(other["other_error"], UserError)
    assert "KeyError" in str(other["other_error"])


def wrap_in_a_cycle(processes: Processes) -> weakref.ref[torch.nn.Module]:
    """A module that averages gradients and can be reached from itself."""
    wrapped = processes.wrap(torch.nn.Linear(2, 1))
    wrapped(torch.ones(1, 2)).sum().backward()
    wrapped.__dict__["itself"] = wrapped
    return weakref.ref(wrapped)


def join_wrap_and_leave(place: str, rank: int, left: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place.split(":")
    gc.disable()
    with join_processes("cpu") as processes:
        wrapped = wrap_in_a_cycle(processes)
    left.put(wrapped() is None)


def test_nothing_that_holds_threads_outlives_the_group():
    """Threads of a collective that are there when Python ends would abort it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    spawn = multiprocessing.get_context("spawn")
    left = spawn.Queue()
    fellows = [spawn.Process(target=join_wrap_and_leave, args=(place, r, left)) for r in (0, 1)]
    for fellow in fellows:
        fellow.start()
    assert [left.get(timeout=HANGS_S) for _ in fellows] == [True, True]
    for fellow in fellows:
        fellow.join()


def test_a_process_alone_makes_everything_itself():
    assert ALONE.from_main(lambda: "own") == "own"
    assert ALONE.total(3) == 3


def test_what_was_on_the_main_process_gpu_comes_to_ones_own_device(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    packed = _pack({"centroids": torch.arange(3.0)})
    monkeypatch.undo()
    found = _unpack(packed, torch.device("cpu"))["centroids"]
    assert found.device.type == "cpu"
    assert found.tolist() == [0, 1, 2]
    # What the main process kept in memory stays there.
    kept = _unpack(_pack(torch.arange(3.0)), torch.device("meta"))
    assert kept.device.type == "cpu"


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
