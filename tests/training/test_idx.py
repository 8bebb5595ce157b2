from __future__ import annotations

import numpy as np
import pytest

from osa_runtime.errors import DataError
from osa_runtime.training.idx import parse_idx

IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])


def test_images_keep_their_order() -> None:
    np.testing.assert_array_equal(parse_idx(IMAGES, "images"), [[[1, 2, 3]], [[4, 5, 6]]])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x00", id="cut in the magic number"),
        pytest.param(b"\x1f\x8b" + IMAGES, id="still compressed"),
        pytest.param(b"\x00\x00\x0d" + IMAGES[3:], id="floats"),
        pytest.param(IMAGES[:10], id="cut in the header"),
        pytest.param(IMAGES[:-1], id="one byte short"),
        pytest.param(IMAGES + b"\x00", id="one byte long"),
    ],
)
def test_damaged_files_are_refused_by_name(content: bytes) -> None:
    with pytest.raises(DataError, match="some-file"):
        parse_idx(content, "some-file")
