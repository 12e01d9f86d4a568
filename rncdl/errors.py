"""Errors meant for the person at the keyboard."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A problem the user can mend: its text names the file, the field, the value and the fix.

    The command line prints the text alone and exits with code 2; nothing else does so.
    """


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence that offers the nearest of `choices`, or nothing when none is near."""
    near = difflib.get_close_matches(word, list(choices), 1, 0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
