"""Label Studio's brush masks: the pixels' RGBA bytes, row by row, in packed runs.

The packing is that of the JavaScript library `@thi.ng/rle-pack`: 32 bits with the number of values,
5 bits with the width of a value less one, and four times 4 bits with the widths of a run's length
less one. Then runs: a bit (1: one value repeated, 0: each value given), 2 bits that choose among
the four widths, the length less one, the value or values.
"""

from collections.abc import Sequence

import numpy as np

from rncdl.errors import UserError

_VALUE_BITS = 8
_LENGTH_BITS = (3, 4, 8, 16)
_CHANNELS = 4
_LONGEST_RUN = 2 ** _LENGTH_BITS[-1]


def pack_mask(mask: np.ndarray) -> bytes:
    """The packed bytes of a (height, width) bool mask: its pixels are 255 in all four channels."""
    values = mask.ravel()
    bits = [format(len(values) * _CHANNELS, "032b"), format(_VALUE_BITS - 1, "05b")]
    bits += [format(width - 1, "04b") for width in _LENGTH_BITS]
    changes = np.flatnonzero(np.diff(values)) + 1
    starts = [0, *changes.tolist()] if len(values) else []
    for start, end in zip(starts, [*starts[1:], len(values)], strict=False):
        value = "1" * _VALUE_BITS if values[start] else "0" * _VALUE_BITS
        left = (end - start) * _CHANNELS
        while left:
            length = min(left, _LONGEST_RUN)
            bits.append(_run_head(length) + value)
            left -= length
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def unpack_mask(packed: Sequence[int], height: int, width: int) -> np.ndarray:
    """The (height, width) bool mask of packed bytes: where the alpha channel is not 0."""
    try:
        values = _unpack(bytes(packed))
    except ValueError as error:
        raise UserError(f"a brush mask is broken ({error})") from error
    if len(values) != height * width * _CHANNELS:
        raise UserError(
            f"a brush mask has {len(values) // _CHANNELS} pixels, its image {height * width}"
        )
    return values.reshape(height, width, _CHANNELS)[:, :, _CHANNELS - 1] > 0


def _run_head(length: int) -> str:
    """The bits before the value of a run of one value, the shortest that hold its length."""
    index = next(i for i, bits in enumerate(_LENGTH_BITS) if length <= 2**bits)
    return f"1{index:02b}{length - 1:0{_LENGTH_BITS[index]}b}"


class _Bits:
    """Reads a text of bits from its beginning."""

    def __init__(self, packed: bytes) -> None:
        self._text = format(int.from_bytes(packed, "big"), f"0{len(packed) * 8}b")
        self._at = 0

    def read(self, count: int) -> int:
        bits = self._text[self._at : self._at + count]
        if len(bits) < count:
            raise ValueError("it ends too early")
        self._at += count
        return int(bits, 2)


def _unpack(packed: bytes) -> np.ndarray:
    """(values,) uint8."""
    bits = _Bits(packed)
    count, value_bits = bits.read(32), bits.read(5) + 1
    length_bits = [bits.read(4) + 1 for _ in range(4)]
    if value_bits != _VALUE_BITS:
        raise ValueError(f"its values have {value_bits} bits instead of {_VALUE_BITS}")
    values = np.zeros(count, dtype=np.uint8)
    at = 0
    while at < count:
        is_run = bits.read(1)
        end = at + 1 + bits.read(length_bits[bits.read(2)])
        if is_run:
            values[at:end] = bits.read(value_bits)
        else:
            for place in range(at, min(end, count)):
                values[place] = bits.read(value_bits)
        at = end
    return values
