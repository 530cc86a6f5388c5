"""Compare methods, reproduce the paper's experiments and write reports."""
