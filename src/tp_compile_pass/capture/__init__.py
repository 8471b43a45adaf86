"""What user code may say about async collectives, rewritten before AOTAutograd sees the graph."""
