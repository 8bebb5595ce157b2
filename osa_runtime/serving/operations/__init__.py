"""Processes: one server from start to drain, and several workers on one port."""
