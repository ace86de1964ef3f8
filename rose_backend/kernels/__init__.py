"""Element-wise chains of the models, fused: plain torch for the CPU and for checking, Triton kernels for GPUs."""
