"""Measures of a model from the inside: tokens through depth, attention matrices, Jacobians."""
