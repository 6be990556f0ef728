"""What runs all devices on one machine: problem, tasks, settings, training, checkpoints and results."""
