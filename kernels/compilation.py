"""How every kernel here is compiled, whatever the Triton that is installed does by default."""

# a * b + c is rounded once. Triton 3.10 will do so only if asked, and 3.9 says so wherever nobody asks.
COMPILED = {"enable_fp_fusion": True}
