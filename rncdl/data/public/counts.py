"""Counts of what was prepared, beside those the paper gives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """How many of something there are, here and in the paper."""

    what: str
    found: int
    paper: int | None = None
    """None: the paper does not say"""
    rounded_to: int = 1
    """what the paper's figure is rounded to: 1000 where it says 100K"""

    @property
    def agrees(self) -> bool:
        """True when the paper's figure, as it is rounded, can mean this count."""
        return self.paper is None or 2 * abs(self.found - self.paper) <= self.rounded_to

    @property
    def paper_text(self) -> str:
        """The paper's figure as it prints it."""
        if self.paper is None:
            return ""
        return f"{self.paper // 1000}K" if self.rounded_to >= 1000 else f"{self.paper:,}"
