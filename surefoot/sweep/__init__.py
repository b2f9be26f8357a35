"""Many runs: which ones (grid, plan), where they are kept (folder), and who carries them out (pool)."""
