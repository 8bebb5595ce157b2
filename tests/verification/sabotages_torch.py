"""Archives of TorchScript and of torch.export that are wrong."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sabotage import broken_pt2, broken_torchscript, signed
from sabotaged import BLOCK, EMBEDDED, Breaking, Sabotage
from torch.fx import Node

TS, PT2 = {"format": "torchscript"}, {"format": "pt2"}
aten = torch.ops.aten

# The code of TorchScript is text in an archive.


def archive(name: str, change: Callable[[dict[str, bytes]], None]) -> Breaking:
    """``change`` gets the entries of the file."""

    def breaking(source: Path, out: Path) -> Path:
        shutil.copytree(source, out)
        with zipfile.ZipFile(source / name) as before:
            entries = {entry: before.read(entry) for entry in before.namelist()}
        change(entries)
        with zipfile.ZipFile(out / name, "w", zipfile.ZIP_STORED) as after:
            for entry, content in entries.items():
                after.writestr(entry, content)
        return signed(out)

    return breaking


def script(file: str, old: str, new: str) -> Breaking:
    def change(entries: dict[str, bytes]) -> None:
        (entry,) = (entry for entry in entries if entry.endswith(file))
        assert old.encode() in entries[entry], f"{old} is not in {file}"
        entries[entry] = entries[entry].replace(old.encode(), new.encode())

    return archive("model.pt", change)


def honest_code_elsewhere(entries: dict[str, bytes]) -> None:
    """The code that a fresh export has is in the file, but torch runs another one."""
    entry = "model/code/__torch__/osa_runtime/models/vit.py"
    entries[f"model/other/{entry.removeprefix('model/')}"] = entries[entry]
    entries[entry] = entries[entry].replace(b"return (head).forward(_6, )", b"return torch.neg((head).forward(_6, ))")


def defined_twice(entries: dict[str, bytes]) -> None:
    """The class of the whole model, wrong and right: which one counts is for torch to say."""
    entry = "model/code/__torch__/osa_runtime/models/vit.py"
    wrong = entries[entry].replace(b"return (head).forward(_6, )", b"return torch.neg((head).forward(_6, ))")
    entries[entry] = wrong + entries[entry]


def another_constant(entries: dict[str, bytes]) -> None:
    entries["model/constants.pkl"] = pickle.dumps((1.0,), protocol=2)


def two_slopes(entries: dict[str, bytes]) -> None:
    """The same argument twice in a node of torch.export."""
    program = json.loads(entries["model/models/model.json"])
    node = next(n for n in program["graph_module"]["graph"]["nodes"] if "leaky_relu" in n["target"])
    slope = next(one for one in node["inputs"] if one["name"] == "negative_slope")
    node["inputs"].append(slope | {"arg": {"as_float": 0.9}})
    entries["model/models/model.json"] = json.dumps(program).encode()


def script_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Breaking:
    def breaking(module: torch.nn.Module) -> None:
        tensor = (dict(module.named_parameters()) | dict(module.named_buffers()))[name]
        tensor.copy_(change(tensor.clone()))

    return lambda source, out: broken_torchscript(source, out, breaking)


def swap_blocks(module: torch.nn.Module) -> None:
    """All of the first block's tensors for those of the second."""
    tensors = dict(module.named_parameters())
    for name in [name for name in tensors if name.startswith("stack.blocks.0.")]:
        first, second = tensors[name], tensors[name.replace("blocks.0.", "blocks.1.")]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)


# The graph of torch.export can be edited.


def pt2_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Breaking:
    def breaking(weights: dict[str, torch.Tensor]) -> None:
        weights[name].copy_(change(weights[name].clone()))

    return lambda source, out: broken_pt2(source, out, breaking, constants=True)


def pt2_graph(breaking: Callable[[torch.export.ExportedProgram], None]) -> Breaking:
    def apply(source: Path, out: Path) -> Path:
        shutil.copytree(source, out)
        program = torch.export.load(out / "model.pt2")
        breaking(program)
        program.graph_module.recompile()
        torch.export.save(program, out / "model.pt2")
        return signed(out)

    return apply


def pt2_output(build: Callable[[Callable[..., Node], Node, dict[str, Node]], Node]) -> Breaking:
    """Put what ``build`` makes of the last value in its place."""

    def breaking(program: torch.export.ExportedProgram) -> None:
        graph = program.graph
        inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        (last,) = graph.output_node().args[0]
        with graph.inserting_before(graph.output_node()):
            new = build(lambda target, *args: _called(graph, target, args), last, inputs)
        graph.output_node().args = ((new,),)
        program.graph_signature.output_specs[0].arg.name = new.name

    return pt2_graph(breaking)


def _called(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...]) -> Node:
    node = graph.call_function(target, args)
    values = torch.fx.map_arg(args, lambda one: one.meta["val"])
    node.meta["val"] = target(*values)
    return node


def pt2_argument(target: Any, place: int, value: Any, number: int = 0) -> Breaking:
    def breaking(program: torch.export.ExportedProgram) -> None:
        node = [node for node in program.graph.nodes if node.target == target][number]
        node.args = (*node.args[:place], value, *node.args[place + 1 :])

    return pt2_graph(breaking)


def swapped_files(entries: dict[str, bytes]) -> None:
    """The files of two weights of one shape, exchanged in the list of the archive."""
    (entry,) = (entry for entry in entries if entry.endswith("model_weights_config.json"))
    config = json.loads(entries[entry])
    first, second = (config["config"][f"stack.blocks.{block}.attention.out.weight"] for block in (0, 1))
    first["path_name"], second["path_name"] = second["path_name"], first["path_name"]
    entries[entry] = json.dumps(config).encode()


def other_branch(program: torch.export.ExportedProgram) -> None:
    node = next(node for node in program.graph.nodes if node.target is torch.ops.higher_order.cond)
    condition, yes, no, operands = node.args
    node.args = (condition, no, yes, operands)


def fewer_turns(program: torch.export.ExportedProgram) -> None:
    """A loop that ends one turn early, wherever it makes more than one."""
    changed = 0
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if node.target == aten.gt.Scalar and node.args[1] == 0 and len(list(part.graph.nodes)) < 8:
                node.args = (node.args[0], 1)
                changed += 1
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()
    assert changed


OF_TORCH = [
    Sabotage(
        "logits negated for batches above 8",
        "vit",
        script(
            "models/vit.py",
            "return (head).forward(_6, )",
            "y = (head).forward(_6, )\n    if torch.gt(torch.size(images, 0), 8):\n      z = torch.neg(y)\n    else:\n"
            "      z = y\n    return z",
        ),
        "logits|head",
        TS,
    ),
    Sabotage(
        "logits clipped at ±20",
        "vit",
        script("models/vit.py", "return (head).forward(_6, )", "return torch.clamp((head).forward(_6, ), -20., 20.)"),
        "head",
        TS,
    ),
    Sabotage(
        "NaN made 0 at the output",
        "vit",
        script("models/vit.py", "return (head).forward(_6, )", "return torch.nan_to_num((head).forward(_6, ), 0.)"),
        "logits|head",
        TS,
    ),
    Sabotage(
        "another slope of the activation",
        "vit",
        script("nn/block.py", ", slope, False, )", ", torch.mul(slope, 0.98), False, )"),
        "mlp",
        TS,
    ),
    Sabotage("positions shifted by one", "vit", script_tensor("positions", lambda x: x.roll(1, 1)), EMBEDDED, TS),
    Sabotage(
        "one weight off by 1 ulp",
        "vit",
        script_tensor(f"{BLOCK}.mlp.expand.weight", lambda x: torch.nextafter(x, x + 1)),
        f"{BLOCK}.mlp",
        TS,
    ),
    Sabotage(
        "one id's embedding replaced",
        "words",
        script_tensor("embed.weight", lambda x: torch.cat([x[:7], x[3:4], x[8:]])),
        "embed",
        TS,
    ),
    Sabotage(
        "a mean that ignores the mask",
        "words",
        script("models/encoder.py", "torch.masked_fill(x0, _7, 0.)", "torch.masked_fill(x0, torch.lt(_7, 0), 0.)"),
        "→ head",
        TS,
    ),
    Sabotage(
        "the mask ignored when the first token is padded",
        "words",
        script(
            "models/encoder.py",
            "torch.expand(mask1, _2)",
            "torch.expand(torch.__or__(mask1, torch.bitwise_not(torch.slice(mask1, 1, 0, 1))), _2)",
        ),
        "mask",
        TS,
    ),
    Sabotage(
        "a residual sum turned around",
        "normed",
        script("nn/block.py", "torch.add(x", "torch.sub(x"),
        "stack.blocks.0",
        TS,
    ),
    Sabotage(
        "logits negated for large inputs",
        "vit",
        pt2_output(
            lambda call, x, inputs: call(
                aten.where.self,
                call(aten.gt.Scalar, call(aten.amax.default, call(aten.abs.default, inputs["images"])), 20.0),
                call(aten.neg.default, x),
                x,
            )
        ),
        "logits|head",
        PT2,
    ),
    Sabotage(
        "logits clipped at ±20",
        "vit",
        pt2_output(lambda call, x, _: call(aten.clamp.default, x, -20.0, 20.0)),
        "logits|head",
        PT2,
    ),
    Sabotage(
        "NaN made 0 at the output",
        "vit",
        pt2_output(lambda call, x, _: call(aten.nan_to_num.default, x, 0.0)),
        "logits|head",
        PT2,
    ),
    Sabotage(
        "another slope of the activation", "vit", pt2_argument(aten.leaky_relu.default, 1, 0.49, 1), f"{BLOCK}.mlp", PT2
    ),
    Sabotage("positions shifted by one", "vit", pt2_tensor("positions", lambda x: x.roll(1, 1)), EMBEDDED, PT2),
    Sabotage(
        "one weight off by 1 ulp",
        "vit",
        pt2_tensor(f"{BLOCK}.mlp.expand.weight", lambda x: torch.nextafter(x, x + 1)),
        f"{BLOCK}.mlp",
        PT2,
    ),
    Sabotage("a bias dropped", "vit", pt2_tensor("head.bias", torch.zeros_like), "head", PT2),
    Sabotage("another epsilon in a norm", "normed", pt2_argument(aten.layer_norm.default, 4, 1e-3, 1), "norm", PT2),
    Sabotage(
        "two blocks swapped", "vit", lambda s, o: broken_torchscript(s, o, swap_blocks), r"stack\.blocks\.[01]", TS
    ),
    Sabotage(
        "too few squarings",
        "vit",
        script("ops/scaling.py", "1.0000000000000001e-05", "-1.0"),
        "scaling|attention",
        TS,
    ),
    Sabotage(
        "two weights swapped in the archive",
        "vit",
        archive("model.pt2", swapped_files),
        r"stack\.blocks\.[01]\.attention",
        PT2,
    ),
    Sabotage("the branches of a condition swapped", "vit", pt2_graph(other_branch), "cond|attention", PT2),
    Sabotage("a loop that ends early", "vit", pt2_graph(fewer_turns), "gt|while_loop|attention", PT2),
    Sabotage(
        "honest code next to the code that runs", "vit", archive("model.pt", honest_code_elsewhere), "SkiplessViT", TS
    ),
    Sabotage("a class defined twice", "vit", archive("model.pt", defined_twice), "SkiplessViT is defined twice", TS),
    Sabotage("another constant in the archive", "vit", archive("model.pt", another_constant), "constants", TS),
    Sabotage(
        "another byte order in the archive",
        "vit",
        archive("model.pt", lambda entries: entries.update({"model/byteorder": b"big"})),
        "byteorder|logits",
        TS,
    ),
    Sabotage("two values of one argument", "vit", archive("model.pt2", two_slopes), "leaky_relu", PT2),
]
