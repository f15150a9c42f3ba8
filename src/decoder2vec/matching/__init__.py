"""Two sides matched, such as jobs and resumes: who fits whom, how well, and why."""
