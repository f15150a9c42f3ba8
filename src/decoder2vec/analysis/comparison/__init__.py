"""`d2v report` on evaluations: encoders side by side on one page. It reads the files other verbs leave."""
