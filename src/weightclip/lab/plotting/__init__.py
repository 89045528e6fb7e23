"""The look of all figures, and the drawing that they share."""
