"""Reports: their content (`reduction`, `risk`, `compare`), and how it is rendered."""
