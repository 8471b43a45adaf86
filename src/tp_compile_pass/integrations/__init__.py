"""One small module per framework that needs more than the backend's name. None is imported by the package itself."""
