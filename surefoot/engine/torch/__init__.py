"""The reference engine: readable PyTorch."""
