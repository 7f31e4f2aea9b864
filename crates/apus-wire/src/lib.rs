//! Homa packet formats: parse, emit, and what both sides of the I/O line agree on.
