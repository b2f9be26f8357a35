"""The engine for NVIDIA GPUs: PyTorch without host reads, its repeated work recorded as CUDA graphs."""
