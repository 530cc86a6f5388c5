"""Experiments: comparisons of methods, the paper's figures, and reports of them."""
