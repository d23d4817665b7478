"""The paper's algorithm in Triton: chunk states in sequence, outputs and gradients of all chunks in parallel."""
