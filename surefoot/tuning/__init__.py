"""Searches for better settings: trials are runs of a sweep, Optuna proposes them, fresh seeds decide."""
