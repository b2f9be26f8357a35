"""The hot path: collect a rollout, take gradient steps. Receives losses and never names an algorithm."""
