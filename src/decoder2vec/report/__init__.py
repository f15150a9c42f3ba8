"""`d2v report`: what a trained run did, as figures and one page. It reads the files a run leaves, nothing else."""
