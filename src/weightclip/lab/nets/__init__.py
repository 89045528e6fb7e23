"""The paper's networks."""
