"""Built-in algorithms: each a function from its settings to an ``AlgorithmSpec``."""
