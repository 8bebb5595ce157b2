"""The parts of the load benchmark of inference servers; benchmarks/serving.py runs them."""
