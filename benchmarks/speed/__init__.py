"""The parts of the speed benchmarks: contests in rotating blocks, contenders, targets, reports, the baseline."""
