"""What things cost: seconds of a collective and of a kernel, from defaults, from a calibration, or by Inductor."""
