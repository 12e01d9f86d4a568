"""Where the memory of tensors comes from on a CPU."""

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers for these options (malloc.h)."""
_MOST = 2**31 - 1
_PAD = 2**26
_LARGE = 2**28
"""Larger pieces come from the system and go back to it: holes of their size would be a waste."""


def keep_freed_memory() -> bool:
    """Let what tensors have freed be taken by the next ones; False where the C library is no glibc.

    glibc gives pieces of more than a megabyte back to the system, and gets them anew page by page,
    each wiped (benchmarks/allocating.py). Options of malloc's in the environment stand.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = ((_TRIM_THRESHOLD, _MOST), (_MMAP_THRESHOLD, _LARGE), (_TOP_PAD, _PAD))
    return all(set_option(option, value) for option, value in options)
