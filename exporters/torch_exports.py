"""The two formats of torch. Both keep the data-dependent number of squarings.

TorchScript is ``torch.jit.script``. The bytes of its file depend on the model alone: torch numbers the names of types
over all that a process has compiled (``___torch_mangle_7``), writes constants in the order of a set, dates the entries
of the archive, and stores the paths of the source files; all of that is put in order here.

torch.export, ``.pt2``, has loops and branches as graph operators, and none with a fixed number of squarings.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, count
from pathlib import Path

import torch
from torch import nn

from osa_runtime.errors import ExportError
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.folding import errors_naming_layers, reason
from osa_runtime.exporters.manifest_entries import traced_settings
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import AttentionCall, AttentionSettings
from osa_runtime.ops.float32_alone import float32_attention
from osa_runtime.ops.interception import intercept
from osa_runtime.steps import Progress, quiet


def export_torchscript(
    module: nn.Module,
    examples: Examples,
    _: tuple[str, ...],
    settings: ExportSettings,
    folder: Path,
    progress: Progress,
) -> tuple[AttentionSettings | None, tuple[AttentionCall, ...]]:
    """Write ``model.pt``, which loads where this package is not installed; returns the settings for the manifest."""
    osa = traced_settings(module, examples.tensors, settings)
    with progress.step("compile the module with TorchScript"), quiet():
        scripted = _script(module)
    with progress.step("write the model"), quiet():
        path = folder / FORMATS["torchscript"].file
        whole = path.with_suffix(".whole")
        scripted.save(str(whole))
        rewrite(whole, path)
        whole.unlink()
    return osa, ()


def _script(module: nn.Module) -> torch.jit.ScriptModule:
    try:
        return torch.jit.script(module)
    except Exception as error:
        layer = _culprit(module, reason(error))
        where = f" in the layer '{layer}'" if layer else ""
        raise ExportError(f"torch cannot capture the model{where}: {reason(error)}") from error


def _culprit(module: nn.Module, why: str) -> str:
    """The deepest layer that cannot be compiled by itself; preferably for the same reason as the whole."""
    failures = [(found == why, path.count("."), path) for path, found in _failures(module)]
    return max(failures, key=lambda failure: failure[:2], default=(False, 0, ""))[2]


def _failures(module: nn.Module) -> Iterator[tuple[str, str]]:
    for path, layer in module.named_modules():
        if path:
            try:
                torch.jit.script(layer)
            except Exception as error:  # noqa: BLE001 - any failure counts
                yield path, reason(error)


FINAL = re.compile(r"(?:^  \w+ : Final\[.*\n)+", re.MULTILINE)
MANGLE = re.compile(r"\.___torch_mangle_\d+")
IN_CODE = re.compile(r"__torch__(?:\.\w+)+")
IN_PICKLE = re.compile(rb"(__torch__(?:\.\w+)*)\n(\w+)\n")
DEFINITION = re.compile(r"^(?=(?:class|def) (\w+)\b)", re.MULTILINE)

EPOCH = (1980, 1, 1, 0, 0, 0)


def rewrite(source: Path, target: Path) -> None:
    """Copy the archive without its debug records, with names, order and dates that depend on nothing else."""
    with zipfile.ZipFile(source) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if is_needed(name)}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in in_order(entries).items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content)


def is_needed(name: str) -> bool:
    """True for entries to keep: debug records map the code to source files, and the id hashes rewritten entries."""
    return not name.endswith((".debug_pkl", "/.data/serialization_id"))


def is_code(name: str, root: str) -> bool:
    return name.startswith(f"{root}/code/") and name.endswith(".py")


def in_order(entries: dict[str, bytes]) -> dict[str, bytes]:
    """Sort the definitions. Raise ValueError for a class or function that is defined twice: torch may use either."""
    root = next(iter(entries)).partition("/")[0]
    code = {name: content.decode() for name, content in entries.items() if is_code(name, root)}
    pickles = {name: content for name, content in entries.items() if name.endswith(".pkl")}
    definitions: dict[str, str] = {}
    for path, text in code.items():
        for name, body in _definitions(path, text):
            if definitions.setdefault(name, body) is not body:
                raise ValueError(f"{name} is defined twice")
    names = _new_names(_reached(pickles.values(), definitions))

    def in_code(found: re.Match[str]) -> str:
        known = _known(found.group(), definitions)
        return found.group() if known is None else names[known] + found.group()[len(known) :]

    def in_pickle(found: re.Match[bytes]) -> bytes:
        name = f"{found[1].decode()}.{found[2].decode()}"
        return "{}\n{}\n".format(*names.get(name, name).rsplit(".", 1)).encode()

    files: dict[str, str] = {}
    for old, new in names.items():
        path = f"{root}/code/{new.rpartition('.')[0].replace('.', '/')}.py"
        files[path] = files.get(path, "") + IN_CODE.sub(in_code, definitions[old])
    rewritten = {name: IN_PICKLE.sub(in_pickle, content) for name, content in pickles.items()}
    rest = {name: content for name, content in entries.items() if name not in code}
    return rest | rewritten | {path: files[path].encode() for path in sorted(files)}


def _definitions(path: str, text: str) -> Iterator[tuple[str, str]]:
    module = path.partition("/code/")[2].removesuffix(".py").replace("/", ".")
    parts = DEFINITION.split(text)
    assert not parts[0].strip(), (
        f"{path} starts with something that is neither a class nor a function: {parts[0][:40]!r}"
    )
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        yield f"{module}.{name}", FINAL.sub(_sorted_lines, body)


def _sorted_lines(found: re.Match[str]) -> str:
    return "".join(sorted(found.group().splitlines(keepends=True)))


def _known(name: str, definitions: dict[str, str]) -> str | None:
    """The definition that a name in the code belongs to: itself, or the class of a method or an enumeration."""
    while name and name not in definitions:
        name = name.rpartition(".")[0]
    return name or None


def _reached(pickles: Iterable[bytes], definitions: dict[str, str]) -> list[str]:
    """The definitions in the order in which the model's objects, then the code of those, refer to them."""
    stored = (f"{m[1].decode()}.{m[2].decode()}" for content in pickles for m in IN_PICKLE.finditer(content))
    order = list(dict.fromkeys(name for name in stored if name in definitions))
    for name in order:  # grows while it is read
        named = (_known(match.group(), definitions) for match in IN_CODE.finditer(definitions[name]))
        order += dict.fromkeys(found for found in named if found is not None and found not in order)
    return list(dict.fromkeys(chain(order, sorted(definitions))))


def _new_names(order: Iterable[str]) -> dict[str, str]:
    taken: set[str] = set()
    names, numbers = {}, count()
    for name in order:
        plain = MANGLE.sub("", name)
        module, _, last = plain.rpartition(".")
        names[name] = plain if plain not in taken else f"{module}.___torch_mangle_{next(numbers)}.{last}"
        taken.add(plain)
    return names


def export_pt2(
    module: nn.Module,
    examples: Examples,
    _: tuple[str, ...],
    settings: ExportSettings,
    folder: Path,
    progress: Progress,
) -> tuple[AttentionSettings | None, tuple[AttentionCall, ...]]:
    """Write ``model.pt2`` into the folder; returns the OSA settings that the manifest records."""
    osa = traced_settings(module, examples.tensors, settings)
    with intercept(float32_attention) if settings.core == "float32" else nullcontext():
        save_pt2(module, examples, folder / FORMATS["pt2"].file, progress)
    return osa, ()


def save_pt2(module: nn.Module, examples: Examples, path: Path, progress: Progress) -> None:
    """Write a file that loads where this package is not installed."""

    def capture() -> torch.export.ExportedProgram:
        # Branches are compiled during capture, and their cache would apply the sizes of an earlier export as guards.
        torch.compiler.reset()
        return torch.export.export(module, examples.tensors, dynamic_shapes=examples.shapes(module))

    with progress.step("capture the graph"), torch.no_grad(), quiet(), errors_naming_layers(module, capture):
        program = capture()
    with progress.step("write the model"), quiet():
        _remove_stack_traces(program.graph_module)
        torch.export.save(program, path)


def _remove_stack_traces(graph_module: torch.fx.GraphModule) -> None:
    """Remove stack traces, which hold paths of this machine, also from branches and loop bodies."""
    for part in graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
