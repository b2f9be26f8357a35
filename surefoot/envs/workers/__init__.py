"""N environments in K worker processes: the same bytes as `GymEnvs`, but a crash or a hang is only an error.

A worker is a fresh interpreter (no fork: it inherits no lock, no thread, no torch, and does not run the user's script
again) that steps a slice of the envs with `GymEnvs` itself. Numbers are passed in one block of shared memory, which
has no name and so cannot be left behind; per step and worker, one byte goes each way over a socket. Rare data (infos
at the end of episodes, errors, states) follows that byte as JSON, so nothing is ever unpickled. Where the kernels can
act for a worker's envs, it plays whole rollouts by itself (`acting.py`), and one message goes each way per rollout.
"""

from surefoot.envs.workers.envs import WorkerEnvs

__all__ = ["WorkerEnvs"]
