"""What the speed benchmarks share: contests in rotating blocks, contenders, targets, reports, the baseline."""
