"""What can be measured: the interface, the registry, and the bundled kernels behind it."""
