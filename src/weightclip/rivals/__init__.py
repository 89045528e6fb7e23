"""The other remedies, each of which goes on top of any optimizer as clipping does; and Madam, an optimizer."""
