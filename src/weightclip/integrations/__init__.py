"""Weight clipping in other libraries: one callback each, imported by itself.

`weightclip.integrations.sb3`, `weightclip.integrations.transformers`, `weightclip.integrations.lightning`.
"""
