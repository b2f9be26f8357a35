"""From settings to a finished run: config, presets, the trainer, evaluation, checkpoints, loggers."""
