"""Make text from outside safe to show: names of columns, tasks and files may hold anything."""

from __future__ import annotations

import re
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
