"""Compiled kernels, which take arrays and scalars and return the same.

Arrays are float64 and C-contiguous, matrices D, Q and S are symmetric; `fastltl._validation`
checks that at the boundary. `fastltl.reference` has a plain-NumPy twin of each formula.
"""
