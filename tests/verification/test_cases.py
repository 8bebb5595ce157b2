"""Cases from files and from real data: what was saved comes back, preprocessing is that which the artifact records, and
what does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from osa_runtime import load
from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.parity.feeds import Case, sweep
from osa_runtime.pixels import Standardisation
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.runtime.session import Session
from osa_runtime.training import load_dataset
from osa_runtime.verification.cases import data_cases, read_cases, read_outputs, write_cases, write_outputs
from osa_runtime.verification.subject import Subject

Exported = Callable[[str, str], Path]


@pytest.fixture
def encoder(exported: Exported) -> Iterator[Session]:
    with load(exported("encoder", "onnx")) as session:
        yield session


class Named:
    """The parts of a session that the files need, with other names."""

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...] = ()) -> None:
        self.inputs, self.outputs, self.interface = inputs, outputs, Interface(inputs, outputs)


def test_a_sweep_comes_back(encoder: Session, tmp_path: Path) -> None:
    cases = list(sweep(Subject(encoder, DeviceSettings(), {}).interface, width=8))
    write_cases(tmp_path / "in.npz", cases)
    found = read_cases(tmp_path / "in.npz", encoder)
    assert [(case.kind, case.sizes, case.name) for case in found] == [(c.kind, c.sizes, c.name) for c in cases]
    for mine, theirs in zip(found, cases, strict=True):
        assert all(np.array_equal(mine.feeds[name], array) for name, array in theirs.feeds.items())


def test_outputs_come_back(encoder: Session, tmp_path: Path) -> None:
    outputs = {"random batch=1 tokens=2": {"logits": np.ones((1, 3), np.float32)}}
    write_outputs(tmp_path / "out.npz", outputs)
    found = read_outputs(tmp_path / "out.npz", encoder)
    assert found.keys() == outputs.keys()
    assert np.array_equal(found["random batch=1 tokens=2"]["logits"], np.ones((1, 3)))


@pytest.mark.parametrize("name", ["serving/x", "a/b/c", "100%/x", "%2F", "x y=3", "/", "入力"])
def test_names_with_slashes_come_back(name: str, tmp_path: Path) -> None:
    session = Named((TensorSpec(name, "float32", ("rows/2", 4)),), (TensorSpec(name, "float32", ("rows/2", 4)),))
    cases = [Case(kind, {"rows/2": 3}, {name: np.ones((3, 4), np.float32)}) for kind in ("random", "own kind")]
    write_cases(tmp_path / "in.npz", cases)
    found = read_cases(tmp_path / "in.npz", session)  # type: ignore[arg-type]
    assert [(case.kind, list(case.feeds)) for case in found] == [("random", [name]), ("own kind", [name])]
    write_outputs(tmp_path / "out.npz", {case.name: case.feeds for case in cases})
    assert read_outputs(tmp_path / "out.npz", session).keys() == {case.name for case in cases}  # type: ignore[arg-type]


def test_plain_arrays_are_one_case_even_with_slashes_in_their_names(tmp_path: Path) -> None:
    session = Named((TensorSpec("serving/x", "float32", ("batch", 4)), TensorSpec("y", "int64", ("batch",))))
    np.savez(tmp_path / "in.npz", **{"serving/x": np.ones((2, 4), np.float32), "y": np.zeros(2, np.int64)})
    (case,) = read_cases(tmp_path / "in.npz", session)  # type: ignore[arg-type]
    assert (case.kind, case.name) == ("given", "given batch=2")


def test_cases_of_ones_own_keep_their_names_apart(encoder: Session, tmp_path: Path) -> None:
    ids, mask = np.ones((2, 3), np.int64), np.ones((2, 3), bool)
    keys = {"mine 1/tokens": ids, "mine 1/mask": mask, "mine 2/tokens": ids, "mine 2/mask": mask}
    np.savez(tmp_path / "in.npz", **keys)
    assert [case.kind for case in read_cases(tmp_path / "in.npz", encoder)] == ["mine 1", "mine 2"]


MASK = np.ones((2, 3), bool)
IDS = np.ones((2, 3), np.int64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": IDS}, "Missing input mask"),
        ({"tokens": IDS, "mask": MASK, "more": MASK}, "Unexpected input 'more'"),
        ({"tokens": IDS.astype(np.float64), "mask": MASK}, "is of type float64, expected int64"),
        ({"tokens": IDS[0], "mask": MASK}, "of rank 1, expected rank 2"),
        ({"tokens": IDS[:1], "mask": MASK}, "expected equal sizes"),
        ({"tokens": IDS[:, :0], "mask": MASK[:, :0]}, "expected at least 1"),
        ({"tokens": np.ones((1, 65), np.int64), "mask": np.ones((1, 65), bool)}, "expected at most 64"),
        ({"tokens": IDS * 99, "mask": MASK}, "holds values from 99 to 99; the model takes 0 to 10"),
        ({"tokens": -IDS, "mask": MASK}, "holds values from -1 to -1"),
        ({"other case/tokens": IDS}, "The case 'other case' of .*Missing input mask"),
    ],
    ids=["missing", "more", "type", "rank", "sizes", "empty", "long", "unknown ids", "negative ids", "named case"],
)
def test_inputs_that_do_not_fit_are_refused(
    arrays: dict[str, np.ndarray], message: str, encoder: Session, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_cases(tmp_path / "in.npz", encoder)


def test_a_file_without_names_is_refused(encoder: Session, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", IDS)
    np.savez(tmp_path / "empty.npz")
    for name in ("x.npy", "empty.npz"):
        with pytest.raises(InputError, match=r"holds no arrays by name; expected an \.npz"):
            read_cases(tmp_path / name, encoder)


IMAGES = (TensorSpec("images", "float32", ("batch", 1, 8, 8)),)


def test_the_recorded_preprocessing_is_applied(deep: Callable[..., Path]) -> None:
    dataset = load_dataset("digits")
    with load(deep("vit")) as session:
        own = data_cases("digits", session, Interface(IMAGES, pixels={"images": dataset.standardisation}))
        other = Standardisation((0.0,), (16.0,), (0.0, 16.0))
        recorded = data_cases("digits", session, Interface(IMAGES, pixels={"images": other}))[0].feeds["images"]
    assert len(own) == 8
    assert all(case.sizes == {"batch": 32} for case in own)
    assert np.array_equal(own[0].feeds["images"][0], dataset.x_test[0])
    assert recorded.min() == 0.0
    assert recorded.max() == 1.0


def test_models_that_take_something_else_are_named(deep: Callable[..., Path]) -> None:
    wide = Interface((TensorSpec("images", "float32", ("batch", 3, 8, 8)),))
    with load(deep("vit")) as session, pytest.raises(InputError, match="channels"):
        data_cases("digits", session, wide)


def test_inputs_of_sequences_in_a_file(deep: Callable[..., Path], tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 11, (40, 7))
    np.savez(tmp_path / "own.npz", tokens=ids, mask=np.ones((40, 7), bool), y=np.arange(40) % 3)
    with load(deep("encoder")) as session:
        interface = session.interface
        (case,) = data_cases(str(tmp_path / "own.npz"), session, interface)
    assert case.sizes == {"batch": 32, "tokens": 7}
