"""Match the documents of two sides, such as jobs and resumes: who fits whom, how well, and why."""
