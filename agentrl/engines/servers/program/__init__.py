"""Server programs: what engines share whose servers are other people's programs."""
