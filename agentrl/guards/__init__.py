"""Guards: what reads bytes of the policy, a server or a stranger without harm to who reads.

Rewards, tools, servers and readers share them. A guard bounds what it reads in size, depth and
time; whatever else is wrong with the bytes is a ValueError or an OSError that says so.
"""
