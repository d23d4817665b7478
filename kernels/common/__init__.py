"""Code that the kernels of every family share: launches, devices, descriptors, sizes, documents, torch operators."""
