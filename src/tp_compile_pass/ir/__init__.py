"""What a collective is: one table, and the queries over FX nodes that use it."""
