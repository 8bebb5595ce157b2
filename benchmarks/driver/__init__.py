"""The driver of all benchmarks: contests in rotating blocks, and what is written of them. Scripts describe the rest."""
