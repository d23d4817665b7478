"""Puts these kernels into models of other libraries, by one line, and takes them out again.

from tflabench.integrations import install

handle = install("transformers")  # or "xlstm", "mlstm_kernels", "fla", "mamba_ssm"
...                               # models run on our kernels, those built before too
handle.uninstall()                # or: with install("transformers"): ...
"""

from .core import Installed, IntegrationError, install

__all__ = ["Installed", "IntegrationError", "install"]
