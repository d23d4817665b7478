"""Say what kernels launch for sizes on a GPU, in plain numbers that launchers, theory and the bench read."""
