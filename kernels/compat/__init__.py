"""Functions of other libraries, by their names, argument orders, layouts and scales, on these kernels.

`fla` has those of flash-linear-attention, `mamba` that of mamba-ssm: change the import, and nothing else. Neither
library is needed.
"""
