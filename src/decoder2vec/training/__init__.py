"""Training: recipes say what is trained of a model, objectives what it learns; one loop, one entry (`api.train`)."""
