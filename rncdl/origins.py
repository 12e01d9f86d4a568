"""What files were made from: fingerprints, and how two origins differ."""

import hashlib
from collections.abc import Mapping
from typing import Any


def digest(*parts: bytes) -> str:
    """A short fingerprint of some bytes."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def origin_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each key of `now` that had another value before; none where all are the same."""
    return [
        f"  {key}: {before.get(key)!r}, now {now[key]!r}"
        for key in now
        if now[key] != before.get(key)
    ]
