"""Properties of sessions, over formats, models, sizes, memory layouts and mistakes.

A valid call gives what each of its rows gives alone, in the declared type and shape. An invalid one is an InputError
and nothing else, and the session works afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from osa_runtime import InputError, Session, load
from osa_runtime.interface import TensorSpec
from osa_runtime.parity import compare_arrays, relative_tolerance
from small_models import FORMATS, MODELS, feeds

Array = NDArray[Any]
Feeds = dict[str, Any]
Exported = Callable[[str, str], Path]
LONGEST = 64

# pt2 runs its graph in Python, node by node: a call takes about ten times as long.
EXAMPLES = {"onnx": 60, "torchscript": 60, "pt2": 12}


@pytest.fixture(scope="module", params=[(m, f) for m in MODELS for f in FORMATS], ids="-".join)
def subject(request: pytest.FixtureRequest, exported: Exported) -> tuple[str, Session]:
    model, kind = request.param
    return model, load(exported(model, kind), threads=1)


def checked(test: Callable[..., None], session: Session) -> None:
    """Run a property with a number of examples that fits the format, the same ones each time."""
    bound = settings(
        max_examples=EXAMPLES[session.format],
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    bound(test)()


# Layouts: other ways to hold the same values.


def strided(array: Array) -> Array:
    wide = np.repeat(array, 2, axis=-1)
    return wide[..., ::2]


def reversed_twice(array: Array) -> Array:
    return np.ascontiguousarray(array[::-1])[::-1]


def read_only(array: Array) -> Array:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def unaligned(array: Array) -> Array:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def broadcast(array: Array) -> Array:
    """A row repeated without copying it: its stride is 0."""
    return np.broadcast_to(array[:1], array.shape)


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "as it is": lambda array: array,
    "Fortran order": np.asfortranarray,
    "strided": strided,
    "negative stride": reversed_twice,
    "read-only": read_only,
    "unaligned": unaligned,
    "list": lambda array: array if array.dtype.kind == "f" else array.tolist(),  # a list of floats is float64
    "masked array": np.ma.asarray,
    "broadcast": broadcast,
}


@st.composite
def valid_calls(draw: st.DrawFn, model: str) -> tuple[Feeds, Feeds]:
    """Feeds in some layout and order, and the same values plainly."""
    batch = draw(st.integers(1, 5), label="batch")
    plain: Feeds = dict(feeds(model, batch, draw(st.sampled_from([1, 2, 3, 16, 17, 33, LONGEST]), label="tokens")))
    shown: Feeds = {}
    for name in draw(st.permutations(list(plain)), label="order"):
        layout = draw(st.sampled_from(sorted(LAYOUTS)), label=f"layout of {name}")
        shown[name] = LAYOUTS[layout](plain[name])
        plain[name] = np.array(shown[name])
    return shown, plain


def expected_shape(spec: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in spec.shape)


def test_a_valid_call_gives_what_each_row_gives_alone(subject: tuple[str, Session]) -> None:
    model, session = subject
    tolerance = relative_tolerance(session.format, "fp32", depth=8)

    @given(call=valid_calls(model))
    def property_holds(call: tuple[Feeds, Feeds]) -> None:
        shown, plain = call
        before = {name: np.array(value) for name, value in shown.items()}
        outputs = session.run(shown)
        sizes = {axis: size for s in session.inputs for axis, size in zip(s.shape, plain[s.name].shape, strict=True)}
        assert list(outputs) == [spec.name for spec in session.outputs]
        for spec in session.outputs:
            assert outputs[spec.name].dtype == np.dtype(spec.dtype)
            assert outputs[spec.name].shape == expected_shape(spec, sizes)
        rows = [session.run({name: array[i : i + 1] for name, array in plain.items()}) for i in range(sizes["batch"])]
        for name, together in outputs.items():
            alone = np.concatenate([row[name] for row in rows])
            assert compare_arrays(together, alone, tolerance), compare_arrays(together, alone, tolerance).reason
        assert all(np.array_equal(value, before[name]) for name, value in shown.items()), "an input was changed"

    checked(property_holds, session)


# Mistakes: each takes valid feeds, the name of one input and a random number, and returns feeds that are wrong.

OTHER_TYPES = ["float32", "float16", "float64", "int64", "int32", "uint8", "bool", "complex64", "U3", "O", "M8[s]"]


def other_type(good: Feeds, name: str, number: int) -> Feeds:
    wrong = OTHER_TYPES[number % len(OTHER_TYPES)]
    assume(np.dtype(wrong) != good[name].dtype)
    return good | {name: np.zeros(good[name].shape, wrong)}


def other_rank(good: Feeds, name: str, number: int) -> Feeds:
    array = good[name]
    wrong = [array[None], array[..., None], array[0], array.reshape(-1), array.reshape(-1)[0], array[None, None]]
    found = wrong[number % len(wrong)]
    assume(np.ndim(found) != array.ndim)
    return good | {name: found}


def no_rows(good: Feeds, name: str, number: int) -> Feeds:
    return {key: array[:0] for key, array in good.items()}


def other_size(good: Feeds, name: str, number: int) -> Feeds:
    """One axis longer than the model, or the other input, takes; a batch may have any size when it is alone."""
    array = good[name]
    axis = number % array.ndim
    assume(axis > 0 or len(good) > 1)
    longer = LONGEST + 1 if len(good) > 1 and axis == 1 else array.shape[axis] + 1 + number % 3
    return good | {name: np.zeros((*array.shape[:axis], longer, *array.shape[axis + 1 :]), array.dtype)}


def too_long(good: Feeds, name: str, number: int) -> Feeds:
    """Every input alike, beyond the range of the axis, or of a fixed size."""
    extra = 1 + number % 100
    return {key: np.ones((*array.shape[:-1], LONGEST + extra), array.dtype) for key, array in good.items()}


def missing(good: Feeds, name: str, number: int) -> Feeds:
    return {key: array for key, array in good.items() if key != name}


def extra(good: Feeds, name: str, number: int) -> Any:
    return good | {[f"{name}s", "", "x" * 1000, name.upper(), 7, None][number % 6]: good[name]}


def no_array(good: Feeds, name: str, number: int) -> Feeds:
    things = [None, "text", object(), [[1], [2, 3]], {"a": 1}, b"bytes", 1j, [None], lambda: 0, Path("x")]
    return good | {name: things[number % len(things)]}


def no_mapping(good: Feeds, name: str, number: int) -> Any:
    return [None, list(good.items()), good[name], "text", 3, tuple(good)][number % 6]


def big_endian(good: Feeds, name: str, number: int) -> Feeds:
    """Of an input that has an order of bytes; a mask of booleans has none."""
    ordered = next(key for key, array in good.items() if array.dtype.itemsize > 1)
    return good | {ordered: good[ordered].astype(good[ordered].dtype.newbyteorder(">"))}


MISTAKES = [
    other_type, other_rank, no_rows, other_size, too_long, missing, extra, no_array, no_mapping, big_endian
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__.replace("_", " "))
def test_a_mistake_is_an_input_error_and_does_no_harm(
    subject: tuple[str, Session], mistake: Callable[[Feeds, str, int], Any]
) -> None:
    model, session = subject
    good = feeds(model, 2, 5)
    expected = session.run(good)["logits"]

    @given(name=st.sampled_from(sorted(good)), number=st.integers(0, 1000), finite=st.booleans())
    def property_holds(name: str, number: int, finite: bool) -> None:
        wrong = mistake(dict(good), name, number)
        with pytest.raises(InputError) as error:
            session.run(wrong, check_finite=finite)
        assert len(str(error.value)) > 20
        assert len(str(error.value)) < 2000

    checked(property_holds, session)
    assert np.array_equal(session.run(good)["logits"], expected)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_value_that_is_not_finite_is_found_wherever_it_is(exported: Exported, kind: str) -> None:
    session = load(exported("vit", kind), threads=1)
    good = feeds("vit", 3)
    expected = session.run(good)["logits"]

    @given(
        value=st.sampled_from([np.nan, np.inf, -np.inf]),
        place=st.tuples(*(st.integers(0, size - 1) for size in good["images"].shape)),
    )
    def property_holds(value: float, place: tuple[int, ...]) -> None:
        images = good["images"].copy()
        images[place] = value
        with pytest.raises(InputError, match="Input images holds 1 NaN or Inf"):
            session.run({"images": images}, check_finite=True)
        # Without the check it may spoil its own row, and no other.
        others = np.arange(3) != place[0]
        logits = session.run({"images": images})["logits"]
        assert compare_arrays(logits[others], expected[others], relative_tolerance(session.format, "fp32", 8))

    checked(property_holds, session)
