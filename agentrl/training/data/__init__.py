"""Training data: partition, packing, prefix tree and attention; demonstrations and preference
pairs.
"""
