//! Parsers of trace formats: bytes in, columns out.
