"""The contenders of the benchmarks of speed: the operator and whole models, with their peers and exact answers."""
