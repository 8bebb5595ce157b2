"""Markup from plain values: everything that is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

NOTHING = "–"


class Html(str):
    """Finished markup; every other string is text, and is escaped when it is inserted."""

    __slots__ = ()


class Figure(str):
    """A formatted number; its cell is never wrapped."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: str) -> Html:
    """An element; ``class_`` stands for class, and an underscore in a name for a hyphen."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for key, value in attributes.items() if value
    )
    return Html(f"<{name}{said}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Html:
    return Html("".join(child if isinstance(child, Html) else html.escape(str(child)) for child in children))


def number(value: float | None, pattern: str = ".2g") -> str:
    """The formatted number, or a dash if it was not or cannot be measured."""
    return NOTHING if value is None else "0" if value == 0 else format(value, pattern)


def times(factor: float) -> str:
    """A factor with two digits, without an exponent below a million."""
    return f"{float(f'{factor:.2g}'):,g} ×"


def badge(verdict: str) -> Html:
    """A verdict by word and shape, not by colour alone."""
    mark = {"pass": "✓", "fail": "✗", "undecided": "?"}[verdict]
    return tag("span", f"{mark} {verdict}", class_=f"badge {verdict}")


def passed_badge(passed: bool) -> Html:
    return badge("pass" if passed else "fail")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[object] = ()) -> Html:
    """A table without the columns that are empty in every row; the note of a row is below it."""
    kept = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
    head = tag("tr", *(tag("th", columns[i], scope="col") for i in kept))
    body: list[Html] = []
    for index, row in enumerate(rows):
        body.append(tag("tr", *(_cell(row[i]) for i in kept)))
        note = notes[index] if notes else ""
        if note:
            body.append(tag("tr", tag("td", note, colspan=str(len(kept))), class_="note"))
    whole = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll")


def _cell(value: object) -> Html:
    if value is None or isinstance(value, (int, float)):
        return tag("td", number(value), class_="num")
    return tag("td", value, class_="num" if isinstance(value, Figure) else "")


def folded(title: object, *content: Html) -> Html:
    """A section that is closed on the screen until it is opened, and open in print."""
    return tag("details", tag("summary", title), *content)


def section(title: str, anchor: str, *content: Html) -> Html:
    return tag("section", tag("h2", title), *content, id=anchor) if any(content) else Html("")
