"""Keeps the repository root off sys.path: see tflabench.__main__.leave_repository_root."""

from tflabench.__main__ import leave_repository_root

leave_repository_root()
