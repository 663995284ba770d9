//! Tests of the parsers.
