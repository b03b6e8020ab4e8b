"""Claims on GPUs, which keep programs of this machine from using the same GPU memory."""
