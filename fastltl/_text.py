"""Show text that may hold anything: names of columns, tasks and files, and warnings; find dates."""

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

#: Parts of dates. A day and a month may come in either order.
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"(?:1[89]|2[01])\d\d"
_ORDERS = (_DAY, _MONTH), (_MONTH, _DAY)
_NAME = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)

#: Ends of years of schools and sports, such as 2010-11: the second follows the first.
_SEASONS = "|".join(f"{year:02}.{year + 1:02}" for year in range(12))

_DATES = [
    r"\d\d?:\d\d(?::\d\d.*)?",  # a time of day
    r"\d{4}(?P<sign>[-/.])\d\d?(?P=sign)\d\d?",
    *(rf"{one}/{two}/(?:{_YEAR}|\d\d)" for one, two in _ORDERS),
    # With other signs, numbers of one digit before a short year may be a version or a mixture.
    *(
        rf"{one}[{sign}]{two}[{sign}](?:{_YEAR}|(?<=\d\d\D\d\d\D)\d\d)"
        for one, two in _ORDERS
        for sign in "-."
    ),
    rf"(?!\d\d(?:{_SEASONS})){_YEAR}[-/](?:0[1-9]|1[0-2])",
    rf"{_MONTH}[-/]{_YEAR}",
    rf"{_NAME}[- /](?:{_YEAR}|\d\d?(?:st|nd|rd|th)?(?:[-/]\d+)?)",
    rf"(?:{_YEAR}|\d\d?(?:st|nd|rd|th|\.)?)[- /]{_NAME}(?:[-/]\d+)?",
]

#: Texts that look like a date or a time.
DATE = re.compile(rf"\s*(?:{'|'.join(_DATES)})(?:[ T,].*)?\s*", re.IGNORECASE)


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
