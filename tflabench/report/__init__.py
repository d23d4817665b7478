"""One HTML page about stored rows: a chart, all rows, claims, machines and commands. No torch."""
