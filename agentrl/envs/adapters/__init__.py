"""Adapters: environments of other libraries, in which the policy has a seat."""
