"""Where chunks are run: in this process, in several processes of this machine, or on Ray."""
