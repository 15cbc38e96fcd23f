"""Tasks of the web world: MiniWoB++ by page and seed, and generated tasks on sites of our own."""
