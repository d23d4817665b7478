"""One HTML page about stored rows: a chart, all rows, roofline, machines and commands. No torch."""
