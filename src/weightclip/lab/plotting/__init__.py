"""Styles and drawing functions of all figures."""
