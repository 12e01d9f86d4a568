"""What tests of the page in a browser have in common."""

from typing import TYPE_CHECKING

from tests.browser import Watched

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect


def name_card(opened: Watched, label: str, name: str) -> None:
    opened.page.fill(f"#{label} input[name=name]", name)
    opened.page.keyboard.press("Enter")


def wait_for_text(opened: Watched, selector: str, text: str) -> None:
    opened.page.locator(selector, has_text=text).first.wait_for()


def box_of(opened: Watched, selector: str) -> "FloatRect":
    found = opened.page.locator(selector).first.bounding_box()
    assert found is not None
    return found
