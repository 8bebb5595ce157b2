"""The claims of the papers, each as an experiment that one command repeats.

    catalogue ──> reproducing ──> one module per experiment ──> runs (a file for each that is finished)
                      └──> report (report.md, figures, results.json)

An experiment decides its claims and their bounds before it runs anything; see ``claims``.
"""

from osa_runtime.evidence.catalogue import EXPERIMENTS, KnownExperiment, find_experiment
from osa_runtime.evidence.claims import Claim, Verdict
from osa_runtime.evidence.reproducing import Reproduction, reproduce

__all__ = [
    "EXPERIMENTS",
    "KnownExperiment",
    "find_experiment",
    "Claim",
    "Verdict",
    "Reproduction",
    "reproduce",
]
