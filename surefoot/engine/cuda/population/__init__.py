"""Several runs as one on a GPU: every kernel serves all agents at once, each with the bits that it has alone."""
