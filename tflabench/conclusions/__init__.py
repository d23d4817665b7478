"""Conclusions from rows and theory: comparisons, claims, advice, the headline."""
