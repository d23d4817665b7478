"""Measured rows: their columns, the journal they are written to, and how they are read again."""
