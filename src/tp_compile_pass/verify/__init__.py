"""Rules that every compiled graph has to keep, and the check that all ranks compiled the same communication."""
