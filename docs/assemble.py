"""Assembles the pages of the site in build/pages: those of the checkout, and references made from the code itself.

``make docs`` runs it, then Zensical. A page is written once, where it also reads well without the site; here it gets
its address, and its links lead to the addresses of others. Links to files that are not pages become plain text.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import onnx

import osa_runtime
from osa_runtime import exporters, training
from osa_runtime.exporters import FunctionChoice, build_functions

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "osa_runtime/ops/README.md": "mathematics.md",
    "benchmarks/README.md": "speed.md",
}
PARTS = ("docs", "benchmarks/results")  # all pages, pictures and styles in them
KINDS = (".md", ".svg", ".png", ".css")
PUBLIC_FUNCTIONS = ("OrthogonalSelfAttention", "OrthogonalAttention", "SkewExponential")


def main(build: Path = ROOT / "build") -> None:
    pages, sources = build / "pages", build / "sources"
    for folder in (pages, sources):
        shutil.rmtree(folder, ignore_errors=True)
    addresses = page_addresses()
    for source, address in addresses.items():
        target = pages / address
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            # Without prompts, only a shell's grammar tells commands from comments.
            text = source.read_text(encoding="utf-8").replace("```console\n", "```sh\n")
            target.write_text(relinked(text, source, addresses), encoding="utf-8")
        else:
            shutil.copy(source, target)
    for name, text in {"ai-osa.md": function_reference(), "api.md": python_reference()}.items():
        if (pages / name).exists():
            raise FileExistsError(f"docs/{name} has the address of a page that is made from the code; rename it.")
        (pages / name).write_text(text, encoding="utf-8")
    copy_sources(sources)


def page_addresses() -> dict[Path, str]:
    """The address of every page and picture of the checkout, by its path."""
    found = {ROOT / source: address for source, address in ELSEWHERE.items()}
    for part in PARTS:
        start = ROOT / part
        below = start if part == "docs" else start.parent.parent
        found |= {path: str(path.relative_to(below)) for path in start.rglob("*") if path.suffix in KINDS}
    return found


def relinked(text: str, source: Path, addresses: dict[Path, str]) -> str:
    here = Path(addresses[source]).parent

    def link(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        address = addresses.get(Path(os.path.normpath(source.parent / path)))
        return label if address is None else f"{mark}[{label}]({os.path.relpath(address, here)}{hash_}{anchor})"

    return re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", link, text)


FUNCTIONS = """# The ONNX functions

The definitions of the domain `ai.osa`, version 1, in the form that chooses by itself (`form="auto"`, with a mask). An
exported model holds those of its nodes, with the bodies of the inner functions in place of their calls.
[The mathematics](mathematics.md) derives the formulas, and [exporting](export.md#the-functions-by-themselves) shows how
to use the functions in a graph of your own.
"""


def function_reference() -> str:
    """Every function of the library, with its documentation and what it calls; the public ones come first."""
    functions = {f.name: f for f in build_functions(FunctionChoice(masked=True, layered=True))}
    inner = sorted(set(functions) - set(PUBLIC_FUNCTIONS))
    parts = [
        FUNCTIONS,
        *(_described(functions[name], functions) for name in PUBLIC_FUNCTIONS),
        "\n## Inner functions",
        *(_described(functions[name], functions, "###") for name in inner),
    ]
    return "\n".join([*parts, ""])


def _described(function: onnx.FunctionProto, known: dict[str, onnx.FunctionProto], level: str = "##") -> str:
    calls = sorted({node.op_type for node in _nodes(function.node)} & known.keys())
    lines = [line.strip() for line in function.doc_string.strip().splitlines()]
    outputs = "" if len(function.output) == 1 else f" → {len(function.output)} outputs"
    return "\n".join(
        [
            f"\n{level} {function.name}",
            f"\n`{function.name}({', '.join(function.input)})`{outputs}",
            *(["", *lines] if lines else []),
            *([f"\nCalls {', '.join(f'[{name}](#{name.lower()})' for name in calls)}."] if calls else []),
        ]
    )


def _nodes(nodes: object) -> list[onnx.NodeProto]:
    found = []
    for node in nodes:  # type: ignore[attr-defined]  # a protobuf container
        found += [node, *(inner for attribute in node.attribute for inner in _nodes(attribute.g.node))]
    return found


def python_reference() -> str:
    """The public names of the package in the groups of its ``__all__``; mkdocstrings fills in their docstrings."""
    lines = ["# The Python API", "", "What `import osa_runtime` offers, and the packages for training and exporting."]
    for title, names in _groups().items():
        lines += [f"\n## {title}", *(f"\n::: osa_runtime.{name}" for name in names)]
    for module in (training, exporters):
        name = module.__name__
        lines += [
            f"\n## {name}",
            *(f"\n::: {name}.{member}" for member in module.__all__ if member not in osa_runtime.__all__),
        ]
    return "\n".join([*lines, ""])


def _groups() -> dict[str, list[str]]:
    listed = Path(osa_runtime.__file__).read_text(encoding="utf-8").partition("__all__ = [")[2].partition("]")[0]
    groups: dict[str, list[str]] = {}
    for title, name in re.findall(r'# (.+)|"(\w+)"', listed):
        if title:
            groups[title.capitalize()] = []
        elif groups:  # what stands before the first title is no interface
            next(reversed(groups.values())).append(name)
    return groups


def copy_sources(folder: Path) -> None:
    """The package as it is installed, which mkdocstrings reads."""
    shutil.copytree(ROOT / "osa_runtime", folder / "osa_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("exporters", "cli"):  # as pyproject.toml maps them
        shutil.copytree(ROOT / name, folder / "osa_runtime" / name, ignore=shutil.ignore_patterns("__pycache__"))


if __name__ == "__main__":
    main()
