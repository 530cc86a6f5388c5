"""Files: tables, streams of tasks, checkpoints."""
