"""The commands below `tflabench rows`, which change stored rows: one file a command."""
