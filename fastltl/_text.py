"""Show text that may hold anything: names of columns, tasks and files, and warnings."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Control characters, which a terminal obeys; marks, separators, embeddings and isolates, which
#: reorder the text beside them or break lines; and surrogates, which no encoding has.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""Replace control characters and the like by escapes, such as \x1b, \u202e or \n."""
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], str(text))


def spreadsheet_cell(value: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would take for a formula.

    It begins with =, +, -, @, a tab or a line break, and is not a number.
    """
    if not (isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n"))):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each warning once on stderr, as a line that begins with Note."""
    from tqdm import tqdm

    notes = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note = f"Note: {printable(message)}"
        if note not in notes:
            notes.add(note)
            tqdm.write(note, file=sys.stderr)  # above a progress bar

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
