"""The order in which kernels, collectives and waits run: collectives start early, waits come late."""
