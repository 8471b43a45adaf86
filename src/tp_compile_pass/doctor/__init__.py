"""`tp-compile-pass doctor`: what is installed, what is known of this torch, what stands in our way, what to do."""

from tp_compile_pass.doctor.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
