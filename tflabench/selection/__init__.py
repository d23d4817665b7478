"""What is to be measured: axes, presets and the points that follow from them. No torch."""
