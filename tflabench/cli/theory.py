"""Commands: see the functions."""
