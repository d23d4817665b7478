"""Say what kernels launch for sizes on a GPU, in plain numbers. Launchers execute a plan; theory and the bench read it."""
