"""Conclusions from rows and theory: comparisons, claims, advice, the ending of a sweep."""
