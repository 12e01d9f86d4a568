"""A GPU that is not there: tensors that say they are on `cuda:0` and compute on the CPU.

They refuse to meet tensors of the CPU, as those of a real GPU do, so code that forgets a
`.to(device)` fails here too, and they count what makes a host wait for its GPU. Numbers are those
of the CPU: a run on the pretended GPU ends like one on the CPU, rounding apart.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
_STREAM = SimpleNamespace(is_capturing=lambda: False)
"""AdamW asks it whether its steps are being recorded."""


class PretendTensor(Tensor):
    """A tensor on the pretended GPU; `inner` holds its values.

    Torch's C++ side takes it for a tensor of the CPU, since it would look for a driver otherwise;
    whoever asks in Python hears `cuda:0`.
    """

    inner: Any
    device = GPU
    is_cuda = True
    is_cpu = False

    @staticmethod
    def __new__(cls, inner: Tensor) -> "PretendTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            requires_grad=inner.requires_grad,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        moved = _MOVES.get(func)
        if moved is not None:
            return moved(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        return _compute(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> Tensor:
        copied: Tensor = PretendTensor(self.inner.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"on the pretended GPU: {self.inner!r}"


def _move(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`tensor.to(...)`, where one side or the other is on the pretended GPU."""
    kwargs.pop("copy", None)
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    options: dict[str, Any] = {"dtype": dtype, "non_blocking": non_blocking}
    if memory_format is not None:
        options["memory_format"] = memory_format
    if isinstance(tensor, PretendTensor) == (device is None or device.type == "cuda"):
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.to(**options) if dtype is not None or memory_format else tensor
    if isinstance(tensor, PretendTensor):
        _waits.copies["to"] += 1
        return tensor.inner.detach().clone().to(**options)
    return torch.ops.aten._to_copy(tensor, device=device, **options)


def _refuse_numpy(tensor: Tensor, *_: Any, **__: Any) -> Any:
    raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")


def _new_tensor(tensor: Tensor, data: Any, **options: Any) -> Tensor:
    return torch.tensor(data, **{"dtype": tensor.dtype, "device": GPU, **options})


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    rows = torch.zeros(*labels.shape, num_classes, dtype=torch.int64, device=labels.device)
    return rows.scatter_(-1, labels.unsqueeze(-1), 1)


_MOVES: dict[Any, Any] = {
    torch.nn.functional.one_hot: _one_hot,
    Tensor.to: _move,
    Tensor.cpu: lambda tensor: _move(tensor, CPU),
    Tensor.cuda: lambda tensor, *_, **__: _move(tensor, GPU),
    Tensor.type_as: lambda tensor, other: _move(tensor, other),
    Tensor.tolist: lambda tensor: _move(tensor, CPU).tolist(),
    Tensor.numpy: _refuse_numpy,
    Tensor.__array__: _refuse_numpy,
    Tensor.new_tensor: _new_tensor,
}


@dataclass
class Waits:
    """What made the host wait for its GPU."""

    scalars: Counter[str] = field(default_factory=Counter)
    """values that were asked for: `.item()`, `if tensor:`"""
    copies: Counter[str] = field(default_factory=Counter)
    """tensors brought to the host"""
    shapes: Counter[str] = field(default_factory=Counter)
    """results whose size only the GPU knows: nonzero, boolean indices, NMS"""

    @property
    def num_asked(self) -> int:
        """Those that the program asked for: scalars and copies."""
        return self.scalars.total() + self.copies.total()


_waits = Waits()

_SIZED_BY_VALUES = ("nonzero", "masked_select", "unique", "_unique2", "nms", "unique_dim")
_MAY_MEET = ("copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "set_")
"""Tensors of both kinds: copies, and CPU indices of GPU tensors."""


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = _tensors_in((args, kwargs))
    pretended = [one for one in tensors if isinstance(one, PretendTensor)]
    device = kwargs.get("device")
    # Gradients of casts are cast "to the CPU", where C++ takes them to be.
    to_gpu = bool(pretended) or (device is not None and torch.device(device).type == "cuda")
    _refuse_mixing(name, args, tensors, pretended)
    if to_gpu and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name}: Expected a 'cuda' device type for generator but found 'cpu'")
    _count(name, args, pretended)
    if device is not None:
        kwargs = {**kwargs, "device": CPU}
    kwargs.pop("pin_memory", None)
    args_inside, kwargs_inside = _change_all(_inside, (args, kwargs))
    found = func(*args_inside, **kwargs_inside)
    if not to_gpu:
        return found
    if name == "_to_copy" and not pretended:
        found = found.clone()
    outside = _change_all(_outside, found)
    if name in _NO_ALIASING:
        return outside
    return return_and_correct_aliasing(func, args, kwargs, outside)


_NO_ALIASING = ("_to_copy", "lift_fresh", "_local_scalar_dense")


def _refuse_mixing(name: str, args: Any, tensors: list[Tensor], pretended: list) -> None:
    if not pretended or name in _MAY_MEET[:2]:
        return
    # A number in a tensor may come from the host, as with a real GPU.
    strangers = [one for one in tensors if not isinstance(one, PretendTensor) and one.dim() > 0]
    if name in _MAY_MEET and isinstance(args[0], PretendTensor):
        indices = {id(one) for one in args[1] if one is not None}
        strangers = [one for one in strangers if id(one) not in indices]
    if strangers:
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            f"devices, cuda:0 and cpu! ({[tuple(one.shape) for one in strangers]})"
        )


def _count(name: str, args: Any, pretended: list) -> None:
    if not pretended:
        return
    if name == "_local_scalar_dense":
        _waits.scalars[name] += 1
    elif name == "copy_" and not isinstance(args[0], PretendTensor):
        _waits.copies[name] += 1
    elif name in _SIZED_BY_VALUES or _has_mask(name, args):
        _waits.shapes[name] += 1


def _has_mask(name: str, args: Any) -> bool:
    """Whether these are the arguments of an indexing by a boolean tensor."""
    if not name.startswith("index") or len(args) < 2 or not isinstance(args[1], list | tuple):
        return False
    if name.startswith("index_put") and args[2].numel() == 1:
        return False  # a masked fill
    return any(one is not None and one.dtype == torch.bool for one in args[1])


def _tensors_in(value: Any) -> list[Tensor]:
    """All tensors in arguments, which are lists and dictionaries of them at most."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in _tensors_in(one)]
    return [value] if isinstance(value, Tensor) else []


def _change_all(change: Callable[[Any], Any], value: Any) -> Any:
    """The same lists and dictionaries with everything in them changed."""
    if isinstance(value, dict):
        return {key: _change_all(change, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_change_all(change, one) for one in value)
    return change(value)


def _inside(value: Any) -> Any:
    return value.inner if isinstance(value, PretendTensor) else value


def _outside(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) else value


class _Dispatch(TorchDispatchMode):
    """Reaches the calls that no tensor takes part in: `torch.zeros(2, device="cuda")`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = _tensors_in((args, kwargs))
        device = kwargs.get("device")
        is_here = device is not None and torch.device(device).type == "cuda"
        if not is_here and not given:
            # Where a gradient is missing, the backward pass makes zeros "on the CPU".
            is_here = torch._C._current_graph_task_id() != -1
            kwargs = {**kwargs, "device": GPU} if is_here else kwargs
        if is_here or any(isinstance(one, PretendTensor) for one in given):
            return _compute(func, args, kwargs)
        return func(*args, **kwargs)


_make_tensor = torch.tensor


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """`torch.tensor`, which would look for a driver, by way of the CPU."""
    if isinstance(data, Tensor):
        return data.to(device=device, **options)
    made = _make_tensor(data, **options)
    return made if device is None else made.to(device)


def _enter_no_grad(self: Any) -> None:
    """Views of ordinary tensors cannot be wrapped in inference mode; all else is the same."""
    self.before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)


def _leave_no_grad(self: Any, *_: Any) -> None:
    torch.set_grad_enabled(self.before)


_begin_autocast = torch.autocast.__init__


def _autocast_on_the_host(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
    _begin_autocast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)


@contextmanager
def pretend_gpu(*, bf16: bool = True) -> Iterator[Waits]:
    """Inside, this process has one GPU; returns the count of what made its host wait."""
    global _waits
    _waits = Waits()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with (
            patch("torch.cuda._lazy_init", lambda: None),
            patch("torch.cuda.is_available", lambda: True),
            patch("torch.cuda.device_count", lambda: 1),
            patch("torch.cuda.current_device", lambda: 0),
            patch("torch.cuda.set_device", lambda device: None),
            patch("torch.cuda.synchronize", lambda device=None: None),
            patch("torch.cuda.is_bf16_supported", lambda including_emulation=True: bf16),
            patch("torch.cuda.get_device_name", lambda device=None: "a pretended GPU"),
            patch("torch.accelerator.current_stream", lambda device=None: _STREAM),
            patch("torch.set_float32_matmul_precision", lambda precision: None),  # the CPU's too
            patch("torch.tensor", _tensor),
            patch("torch.as_tensor", _tensor),
            patch.object(Tensor, "pin_memory", lambda self, device=None: self),
            patch.object(torch.inference_mode, "__enter__", _enter_no_grad),
            patch.object(torch.inference_mode, "__exit__", _leave_no_grad),
            patch.object(torch.autocast, "__init__", _autocast_on_the_host),
            _Dispatch(),
        ):
            yield _waits
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
