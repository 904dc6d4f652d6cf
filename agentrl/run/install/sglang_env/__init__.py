"""The environment that SGLang servers run in: its recipes, its default place, and how it is
built.
"""
