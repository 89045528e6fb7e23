"""Weight clipping in other libraries: one callback each. Import the module of the installed library.

`weightclip.integrations.sb3`, `weightclip.integrations.transformers`, `weightclip.integrations.lightning`.
"""
