"""One HTML page about stored rows: a chart, a look-up, all rows, claims, machines and commands. No torch."""
