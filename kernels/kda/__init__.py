"""Kimi Delta Attention: the delta rule on a state whose rows decay each for itself."""
