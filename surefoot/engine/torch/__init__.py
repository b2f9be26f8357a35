"""The engine that everything else is held against: readable PyTorch."""
