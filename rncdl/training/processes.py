"""Devices and processes: one, or many started together, with the same code."""

import gc
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.serialization import default_restore_location
from torch.types import Storage

from rncdl.errors import UserError
from rncdl.training.allocating import keep_freed_memory

T = TypeVar("T")

_LONGEST_PAUSE_S = 0.2
"""Between two looks whether the main process has finished."""


@dataclass(frozen=True)
class Processes:
    """This process among its fellows."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True in the one process that writes files and talks to the user."""
        return self.rank == 0

    def share_of(self, total: int, *, what: str) -> int:
        """This process's part of `total`, which must divide evenly."""
        if total % self.count:
            raise UserError(
                f"{what} = {total} cannot be shared evenly by {self.count} processes; "
                f"choose a multiple of {self.count}."
            )
        return total // self.count

    def wait_for_all(self) -> None:
        """Return when every process has come here."""
        if self.count > 1:
            dist.barrier()

    def any_true(self, flag: bool) -> bool:
        """True in all processes if it is true in one."""
        if self.count == 1:
            return flag
        votes = torch.tensor(int(flag))  # on the CPU: no GPU is waited for
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return bool(votes.item())

    def total(self, number: int) -> int:
        """The sum of all processes' numbers."""
        if self.count == 1:
            return number
        total = torch.tensor(number)
        dist.all_reduce(total)
        return int(total.item())

    def mean(self, values: Tensor) -> Tensor:
        """Element-wise mean over the processes."""
        if self.count > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.count
        return values

    def gather(self, item: T) -> list[T]:
        """Every process's item, in the order of the ranks, in every process."""
        if self.count == 1:
            return [item]
        items: list[T | None] = [None] * self.count
        dist.all_gather_object(items, item)
        return cast("list[T]", items)

    def from_main(self, make: Callable[[], T]) -> T:
        """What `make` makes in the main process, which has its machine's cores meanwhile.

        It is made once and sent to the others, tensors of a GPU to each one's own GPU. A
        `UserError` of `make` is raised in all processes; so is, as one, any other error.
        """
        if self.count == 1:
            return make()
        if not self.is_main:
            return _unpack(self._receive(), self.device)
        try:
            made = self._with_all_cores(make)
            content = _pack(made)
        except Exception as error:
            self._send(_pack(None, _as_user_error(error)))
            raise
        self._send(content)
        return made

    def _with_all_cores(self, make: Callable[[], T]) -> T:
        threads = torch.get_num_threads()
        waiting_here = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))  # set by torchrun
        torch.set_num_threads(threads * waiting_here)
        try:
            return make()
        finally:
            torch.set_num_threads(threads)

    def _send(self, content: bytes) -> None:
        """Let the others know that there is something to receive, and broadcast it."""
        store, key = self._next_message()
        store.set(key, "sent")
        dist.broadcast_object_list([content], src=0)

    def _receive(self) -> bytes:
        """Wait for what the main process sends.

        It may take hours: to wait in the collective itself would end in its timeout.
        """
        store, key = self._next_message()
        pause_s = 0.001
        while not store.check([key]):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        received: list[bytes | None] = [None]
        dist.broadcast_object_list(received, src=0)
        return cast("bytes", received[0])

    def _next_message(self) -> tuple[dist.Store, str]:
        """The place the processes share, and the name there of the message whose turn it is."""
        store = dist.distributed_c10d._get_default_store()
        number = store.add(f"rncdl/messages_of_{self.rank}", 1)
        return store, f"rncdl/message_{number}"

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over the processes, all of them in one exchange.

        A parameter that only some processes reached counts as zero in the others.
        """
        if self.count == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        if not gradients:
            return
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined)
        joined /= self.count
        parts = joined.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` itself, or one whose backward pass averages gradients over the processes."""
        if self.count == 1:
            return module
        if self.device.type == "cuda":
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
            return DistributedDataParallel(module, device_ids=[self.device.index])
        return DistributedDataParallel(module)


def _as_user_error(error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"The main process failed: {type(error).__name__}: {error}")


def _pack(made: Any, error: UserError | None = None) -> bytes:
    """What was made, or the error that came instead, as bytes."""
    content = io.BytesIO()
    torch.save((made, error), content)
    return content.getvalue()


def _unpack(content: bytes, device: torch.device) -> Any:
    """What was made, its tensors on the CPU or, where they were on a GPU, on `device`."""

    def place(storage: Storage, location: str) -> Storage:
        if location != "cpu":
            storage = default_restore_location(storage, str(device))
        return storage

    made, error = torch.load(io.BytesIO(content), map_location=place, weights_only=False)
    if error is not None:
        raise error
    return made


def choose_device(name: str) -> torch.device:
    """The device a user named: `cuda` is this process's own GPU, `auto` that or the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(
            f"device={name!r} is not a device; use auto, cpu, cuda or cuda:1."
        ) from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"device={name!r}, but this machine has no usable GPU; use device=cpu.")
    torch.set_float32_matmul_precision("high")  # TF32: ten bits of mantissa, several times faster
    if device.index is None:
        return torch.device("cuda", _own_gpu())
    if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        raise UserError(f"device={name!r} is one GPU for several processes; use device=cuda.")
    return device


def _own_gpu() -> int:
    number, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if number >= count:
        raise UserError(
            f"Process {number} of this machine finds no GPU of its own, there are {count}; "
            f"start at most {count} processes, or give device=cpu."
        )
    return number


def alone(device_name: str) -> Processes:
    """This process by itself, for work that is not shared."""
    return Processes(rank=0, count=1, device=choose_device(device_name))


@contextmanager
def join_processes(device_name: str) -> Iterator[Processes]:
    """This process's place among those started together; alone if it was started alone.

    To join is to wait for all: what a process saw on the disk before, no other has changed since.
    The stages of a longer job may join again, and share its connections.
    """
    device = choose_device(device_name)
    count = int(os.environ.get("WORLD_SIZE", 1))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type == "cpu":
        keep_freed_memory()
    if count == 1:
        yield Processes(rank=0, count=1, device=device)
        return
    if dist.is_initialized():
        dist.barrier()
        yield Processes(rank=dist.get_rank(), count=count, device=device)
        return
    # What is on a GPU goes from GPU to GPU, all else by way of the hosts.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    # The main process may evaluate alone for long while the others wait.
    dist.init_process_group(backend, timeout=timedelta(hours=4))
    yield Processes(rank=dist.get_rank(), count=count, device=device)
    # Not after an error: NCCL would wait for the others, who may never come here.
    dist.destroy_process_group()
    # DDP's modules hold gloo's threads in reference cycles. Threads that are still there when
    # Python ends abort a process whose work is done (13 of 50; with this line 0 of 50).
    gc.collect()


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The number type of the forward pass; `auto` is float32 on CPU, the best half on a GPU."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[
            name
        ]
    if device.type != "cuda":
        return torch.float32
    # Older GPUs emulate bfloat16, several times slower than they compute in float16.
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float16


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """A context in which matrix products run in `precision`."""
    return torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32)


def seed_step(seed: int, *, step: int, rank: int) -> None:
    """Make all of torch's randomness in this step a function of these three numbers.

    A resumed run thus draws what an uninterrupted one would, with no generator to save.
    """
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
