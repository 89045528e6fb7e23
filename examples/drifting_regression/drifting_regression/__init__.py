"""An experiment in a separate package: linear regression on a drifting target (docs/howto/extending.md)."""
