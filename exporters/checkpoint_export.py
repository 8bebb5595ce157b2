"""Export one of our checkpoints: the models describe their own inputs and axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.atomic import check_apart
from osa_runtime.errors import CheckpointError, InputError
from osa_runtime.exporters.examples import made_examples
from osa_runtime.exporters.pipeline import export
from osa_runtime.models import SkiplessEncoder, SkiplessViT, load_checkpoint
from osa_runtime.models.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    checkpoint_folder,
    read_class_names,
    read_description,
    read_standardisation,
)
from osa_runtime.pixels import Standardisation
from osa_runtime.sample_inputs import usual_sizes
from osa_runtime.targets import allows_dynamic_axes

EXAMPLE_SIZES = (2, 7)  # rows and tokens


def export_checkpoint(
    checkpoint: str | Path, out: str | Path, *, static: bool = False, pixels: str = "float32", **options: Any
) -> Artifact:
    """Export the checkpoint in a folder; ``options`` are those of ``export``.

    Images have a dynamic batch; sequences a dynamic batch and length, with the mask as an input. ``static`` fixes
    everything at a batch of 1, and at the full length; so does a target without dynamic axes. ``pixels="uint8"`` folds
    the standardisation of pixels into the model, which then takes them as they are stored.
    """
    check_checkpoint(checkpoint, out, pixels)
    static = static or not allows_dynamic_axes(options.get("target"))
    model = load_model(checkpoint, pixels)
    where = checkpoint_folder(checkpoint)
    interface = model.interface()
    longest = max((interface.limit(axis) or 1 for axis in interface.lengths), default=1)
    args, axes = made_examples(interface, usual_sizes(interface, *((1, longest) if static else EXAMPLE_SIZES)))
    source = {"model": type(model).__name__, "sha256": sha256(where / WEIGHTS_FILE)}
    return export(
        model,
        args,
        out,
        input_names=list(axes),
        output_names=[spec.name for spec in interface.outputs],
        dynamic_shapes=None if static else axes,
        value_ranges=interface.values,
        preprocessing=_preprocessing(model, where),
        class_names=read_class_names(where),
        source=source,
        **options,
    )


def check_checkpoint(checkpoint: str | Path, out: str | Path, pixels: str = "float32") -> None:
    """Refuse before any weights are read what can be refused by then."""
    where = checkpoint_folder(checkpoint)
    model_class, _ = read_description(where)
    if pixels not in ("float32", "uint8"):
        raise InputError(f"pixels={pixels!r}: expected float32 or uint8.")
    if pixels == "uint8" and model_class is not SkiplessViT:
        raise InputError(
            f"pixels='uint8' is for image models, and {where} holds a {model_class.__name__}; leave it out."
        )
    if pixels == "uint8" and read_standardisation(where) is None:
        raise InputError(
            f"pixels='uint8': {where / CONFIG_FILE} does not say how pixels were standardised in training; save the "
            "model again, with save_checkpoint(model, folder, standardisation=Standardisation(mean, std, pixels))."
        )
    if not (where / WEIGHTS_FILE).is_file():
        raise CheckpointError(f"{where / WEIGHTS_FILE} does not exist; copy it next to {CONFIG_FILE}.")
    check_apart(out, where)


def load_model(checkpoint: str | Path, pixels: str = "float32") -> SkiplessViT | SkiplessEncoder:
    """The model, with images as pixels of this type."""
    model, found = load_checkpoint(checkpoint), read_standardisation(checkpoint_folder(checkpoint))
    if pixels == "uint8" and isinstance(model, SkiplessViT) and found is not None:
        model.take_bytes(found.of_bytes)
    return model


def _preprocessing(model: SkiplessViT | SkiplessEncoder, where: Path) -> dict[str, Standardisation]:
    found = read_standardisation(where)
    if found is None or not isinstance(model, SkiplessViT):
        return {}
    if len(found.mean) != model.config.channels:
        raise CheckpointError(
            f"{where / CONFIG_FILE} standardises {len(found.mean)} channels, but the model has {model.config.channels}."
        )
    return {"images": found.of_bytes.undone if model.takes_bytes else found}
