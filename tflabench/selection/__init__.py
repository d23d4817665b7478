"""Selections of what to measure: axes, presets and the points that follow from them. No torch."""
