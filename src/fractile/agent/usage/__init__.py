"""What runs on the cards: regions, driver and arbiter, polled once a second, and the pages that show it."""
