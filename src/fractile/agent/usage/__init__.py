"""What runs on the cards: a look at regions, driver and arbiter once a second, and the pages that show it."""
