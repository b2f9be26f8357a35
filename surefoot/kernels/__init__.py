"""The fast twins of hot functions, compiled. Each has a readable oracle, and a test that compares the two."""
