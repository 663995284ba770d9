"""Send streams: generating them, parsing their records, and the difference that they contain."""
