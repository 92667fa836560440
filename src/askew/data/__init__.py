"""Domains, tasks and label shift: reading, decoding and drawing images; `benchmarks` has the
published data sets."""
