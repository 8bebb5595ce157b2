"""The page of a verification: one file that needs nothing else, for a reader who has the certificate's question.

The verdict comes first, then what it rests on. No script, no font and no picture is loaded from anywhere.
"""

from __future__ import annotations

from pathlib import Path

from osa_runtime.atomic import atomic_file
from osa_runtime.parity.certificate import Certificate
from osa_runtime.plotting import require_matplotlib
from osa_runtime.verification.page.cards import cards
from osa_runtime.verification.page.cases import cases_table, metrics_table
from osa_runtime.verification.page.finite import finite
from osa_runtime.verification.page.heads import heads_plots
from osa_runtime.verification.page.markup import Html, join, section, tag
from osa_runtime.verification.page.parts import units_plot
from osa_runtime.verification.page.results import bisection_facts, checks_table, layers_table, units_table
from osa_runtime.verification.page.rules import reproduction, rule
from osa_runtime.verification.page.sizes import sizes_plot
from osa_runtime.verification.page.spread import histogram_plot
from osa_runtime.verification.page.style import STYLE
from osa_runtime.verification.page.summary import summary, title

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser would refuse whatever else slipped in


def write_page(certificate: Certificate, path: Path) -> None:
    """Write the certificate as an HTML page to ``path``, in place of an earlier one."""
    text = _document(finite(certificate))
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _document(certificate: Certificate) -> str:
    require_matplotlib()
    sections = _sections(certificate)
    links = tag("nav", *(tag("a", name, href=f"#{anchor}") for name, anchor, _ in sections))
    body = [summary(certificate), tag("p", rule(certificate)), cards(certificate), links]
    body += [section(name, anchor, content) for name, anchor, content in sections]
    head = Html(
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    )
    head = join([head, tag("title", title(certificate)), "\n", tag("style", Html(STYLE))])
    page = tag("html", tag("head", head), "\n", tag("body", tag("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _sections(certificate: Certificate) -> list[tuple[str, str, Html]]:
    """Name, anchor and content of each section that has any."""
    layers, units = layers_table(certificate), units_table(certificate)
    found = [
        ("Where the fault is", "fault", bisection_facts(certificate)),
        ("Checks", "checks", checks_table(certificate)),
        ("Cases", "cases", join([cases_table(certificate), metrics_table(certificate)])),
        ("Parts", "parts", join([units_plot(certificate), units])),
        ("Orthogonality", "orthogonality", join([heads_plots(certificate), layers])),
        ("Error by size", "sizes", sizes_plot(certificate)),
        ("Spread of the errors", "spread", histogram_plot(certificate)),
        ("To repeat it", "repeat", reproduction(certificate)),
    ]
    return [entry for entry in found if entry[2]]
