"""What is free where. The only writer of capacity: fed by watches, read by the extender, rebuilt from the API."""
