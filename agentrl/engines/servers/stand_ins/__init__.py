"""Modules that are copied into servers' environments without a GPU; nothing here is imported by
agentrl itself.
"""
