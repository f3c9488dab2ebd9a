"""A node among its peers: whom it knows and dials, what it remembers of them, and what it answers them."""
