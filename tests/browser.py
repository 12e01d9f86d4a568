"""A real browser, watched: what it complains of and what it asks for."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_HANGS_MS = 900_000
"""A browser that has not answered by then never will, however busy the machine is."""


@contextmanager
def start_chromium() -> Iterator["Browser"]:
    """The system's chromium; the test is skipped where it or playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install -e '.[dev]'"
    )
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is missing: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, timeout=_HANGS_MS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """An open page and all that went wrong with it."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)
    """errors and warnings of the console, errors of scripts, requests to the outside"""

    def shown_clusters(self) -> list[str]:
        """Names of the cards, in their order."""
        return self.page.eval_on_selector_all("#cards .card", "cards => cards.map(c => c.id)")

    def focused(self) -> str:
        """The id, name or class of what the keyboard speaks to."""
        return self.page.evaluate(
            "(e => e.id || e.name || e.className)(document.activeElement)",
        )

    def press_until(self, key: str, wanted: str, *, limit: int = 60) -> None:
        """Press a key until the focus is on what is wanted."""
        for _ in range(limit):
            self.page.keyboard.press(key)
            if self.focused() == wanted:
                return
        raise AssertionError(f"{limit} times {key} did not lead to {wanted}")

    def undecoded_images(self) -> list[str]:
        """Alt texts of images, all of which are waited for, that show nothing."""
        return self.page.evaluate(
            """async () => {
              const images = [...document.images];
              for (const image of images) image.loading = "eager";
              await Promise.allSettled(images.map((image) => image.decode()));
              return images.filter((image) => !image.naturalWidth).map((image) => image.alt);
            }"""
        )

    def images_without_words(self) -> int:
        """How many images have no alt text."""
        return self.page.evaluate("[...document.images].filter(i => !i.alt.trim()).length")


@contextmanager
def open_file(
    browser: "Browser",
    path: Path,
    *,
    width_px: int = 1280,
    colours: Literal["light", "dark"] = "light",
    media: Literal["screen", "print"] = "screen",
) -> Iterator[Watched]:
    """The page of a file, once it has loaded."""
    with open_address(
        browser, path.as_uri(), width_px=width_px, colours=colours, media=media
    ) as opened:
        yield opened


@contextmanager
def open_address(
    browser: "Browser",
    address: str,
    *,
    width_px: int = 1280,
    colours: Literal["light", "dark"] = "light",
    media: Literal["screen", "print"] = "screen",
) -> Iterator[Watched]:
    """The page, once it has loaded; the page of a server may ask for what is below its address."""
    context = browser.new_context(viewport={"width": width_px, "height": 900}, color_scheme=colours)
    context.set_default_timeout(_HANGS_MS)
    page = context.new_page()
    page.emulate_media(media=media)
    watched = Watched(page)
    complain = watched.complaints.append
    own = ("file:", "data:") if address.startswith("file:") else (address.partition("#")[0],)
    page.on("console", lambda said: complain(said.text) if said.type != "log" else None)
    page.on("pageerror", lambda error: complain(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith(own) else complain(asked.url),
    )
    page.goto(address)
    yield watched
    context.close()
