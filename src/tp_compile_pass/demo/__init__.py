"""`tp-compile-pass demo`: the catalogue of call sites, run on real ranks, as a live table and a report."""
