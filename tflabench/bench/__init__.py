"""Measurement: processes, timing, checks, memory, clocks. A point goes in, the columns of a row come out."""
