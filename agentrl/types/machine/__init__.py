"""Machine: what servers and programs need of the one that they run on."""
