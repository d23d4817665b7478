"""The delta rule, with a decay and without: DeltaNet and Gated DeltaNet."""
