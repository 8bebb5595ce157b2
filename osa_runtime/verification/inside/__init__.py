"""The parts of a model, seen in a run and called alone, for eager PyTorch and for each exported format."""
