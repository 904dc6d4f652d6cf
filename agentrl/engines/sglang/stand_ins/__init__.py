"""Modules that are copied into an SGLang environment without a GPU; nothing here is imported by
agentrl itself.
"""
