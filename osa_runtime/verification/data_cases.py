"""Cases of real data, through the preprocessing that the artifact records."""

from __future__ import annotations

from osa_runtime.evaluation.classifiers import Classifier
from osa_runtime.evaluation.samples import read_samples
from osa_runtime.interface import Interface
from osa_runtime.parity.feeds import Case
from osa_runtime.runtime.session import Session

ROWS, MOST = 32, 256


def data_cases(data: str, session: Session, signature: Interface) -> list[Case]:
    """``data`` is what `osa evaluate` takes: the name of a data set, or an .npz of images or inputs, with labels."""
    samples = read_samples(data).limited(MOST)
    feeds = samples.feeds(Classifier(str(session.path), signature, session.run))
    rows = min(ROWS if signature.batch is not None else 1, signature.limit(signature.batch or "") or ROWS)
    cases = []
    for start in range(0, len(samples) - rows + 1, rows) if len(samples) > rows else [0]:
        cut = {name: array[start : start + rows] for name, array in feeds.items()}
        cases.append(Case(f"data {start}", signature.sizes(cut), cut))
    return cases
