"""Measuring exported models: latency, throughput, memory, load time, and the time of each node of a graph.

``benchmark`` has ``run_benchmark``. Only ``eager`` imports torch, and it is imported only to compare with a checkpoint.
"""
