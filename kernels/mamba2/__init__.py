"""Mamba 2 around its recurrence: a bias of step sizes before it, a skip connection and a gate behind it."""
