"""One sweep over several GPUs: a driver gives comparisons away, and each is measured whole on one GPU. No torch."""
