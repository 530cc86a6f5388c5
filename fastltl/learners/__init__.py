"""Estimators: one task with a given representation, and representations learned from many."""
