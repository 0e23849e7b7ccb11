"""Reading in parts: a question asked of each window of the documents in turn, and what is made of the findings."""
