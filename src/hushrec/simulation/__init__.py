"""Train with all devices simulated on one machine: settings, tasks, training, checkpoints and results."""
