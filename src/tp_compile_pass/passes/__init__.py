"""Graph passes: the pass type, the pipeline that runs them, and one file per pass that works after AOTAutograd."""
