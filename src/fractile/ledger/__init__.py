"""What is free where. The only writer of capacity: fed by watches, asked by the extender, rebuilt from the API."""
