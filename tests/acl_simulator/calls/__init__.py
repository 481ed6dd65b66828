"""The calls of the module `acl`, one class per family; methods are named as the calls are.

A method takes parsed arguments and returns the values without `ret`; it raises `Refusal` for an
error code. `entries.py` makes of it what pyACL's caller sees.
"""
