"""Measuring exported models: latency, throughput, memory, load time, and where a graph spends its time.

``benchmark`` has ``run_benchmark``. Only ``eager`` imports torch, and it is imported only to compare with a checkpoint.
"""
