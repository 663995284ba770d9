"""Reports: what is said and drawn (`reduction`, `risk`, `compare`), and how it gets onto a page."""
