"""One record of what was done to each graph, and its text, JSON and trace views."""
