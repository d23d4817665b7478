"""The command line: one file a command, named after it. Parse, call, print; nothing else."""
