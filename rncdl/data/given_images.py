"""Images that a caller holds in memory, or names, as tensors."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rncdl.data.image_headers import failure_reason
from rncdl.data.images import pixels_of_picture, read_image
from rncdl.errors import UserError

GivenImage = str | Path | Image.Image | np.ndarray | Tensor
"""A file; a Pillow image; an array (height, width) or (height, width, 1 or 3); a tensor
(1 or 3, height, width). Arrays and tensors are grey or RGB: uint8, or floating from 0 to 1."""


def pixels_of(image: GivenImage) -> Tensor:
    """(3, height, width) uint8 RGB on the CPU; a UserError says what is wrong with the image.

    Files and Pillow images follow the rules of `read_image`.
    """
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        try:
            return pixels_of_picture(image)
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"broken or unsupported image ({failure_reason(error)}).") from error
    if isinstance(image, np.ndarray):
        return _to_rgb_bytes(_channels_first(image))
    if isinstance(image, Tensor):
        if image.ndim != 3 or image.shape[0] not in (1, 3) or not image.numel():
            raise UserError(
                f"a tensor of shape {tuple(image.shape)} is no image: give (3, height, width) or "
                "(1, height, width); of a batch, give list(batch)."
            )
        return _to_rgb_bytes(image.detach().cpu())
    raise UserError(
        f"{type(image).__name__} is no image: give a path, a Pillow image, a numpy array "
        "(height, width, 3) or a tensor (3, height, width)."
    )


def _channels_first(array: np.ndarray) -> Tensor:
    """(1 or 3, height, width), of the array's own type."""
    with_channels = array[:, :, None] if array.ndim == 2 else array
    if with_channels.ndim != 3 or with_channels.shape[2] not in (1, 3) or not array.size:
        raise UserError(
            f"an array of shape {array.shape} is no image: give (height, width), or "
            "(height, width, 3) in RGB; of a batch, give list(batch)."
        )
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise _wrong_type(str(array.dtype))
    # A copy: torch takes neither negative strides nor memory that must not be written.
    return torch.from_numpy(np.ascontiguousarray(with_channels.transpose(2, 0, 1)).copy())


def _to_rgb_bytes(pixels: Tensor) -> Tensor:
    """(3, height, width) uint8 of (1 or 3, height, width) uint8, or floating from 0 to 1."""
    if pixels.is_floating_point():
        low, high = (value.item() for value in pixels.double().aminmax())
        if not (low >= 0 and high <= 1):
            raise UserError(
                f"floating pixels from {low:g} to {high:g}: give values from 0 to 1, or uint8 "
                "from 0 to 255."
            )
        pixels = (pixels.double() * 255).round().to(torch.uint8)
    elif pixels.dtype != torch.uint8:
        raise _wrong_type(str(pixels.dtype).removeprefix("torch."))
    return pixels.expand(3, -1, -1).contiguous()


def _wrong_type(name: str) -> UserError:
    return UserError(f"pixels of type {name}: give uint8, or floating values from 0 to 1.")
