/** Example inputs. All people and companies are invented. */

export const PAIRS = [
  ["The ferry was cancelled because of the storm.", "Rough weather kept the boat in the harbour."],
  ["She runs a bakery in the old town.", "She runs ten kilometres before breakfast."],
  ["The bank raised its interest rates in May.", "Herons nest along the bank of the river."],
];

export const JOBS = [
  {
    id: "cloud-engineer.txt",
    text: "Cloud engineer\nKeep our cloud-based systems healthy.\n\nSkills\nKubernetes, Terraform, monitoring, on-call duty. " +
      "Python for automation.\n\nEducation\nA degree or the same in practice.",
  },
];

export const RESUMES = [
  {
    id: "ines-carvalho.txt",
    text: "Inês Carvalho\n\nSkills\nAWS and GCP, both certified. Terraform, Kubernetes, Python.\n\nExperience\nFive years of " +
      "running production clusters for a bank, with on-call duty every third week.",
  },
  {
    id: "tomasz-wrona.txt",
    text: "Tomasz Wrona\n\nSkills\nPython, statistics, dashboards.\n\nExperience\nAnalyst at an insurer: monitoring of claims, " +
      "reports every morning, automation of what used to be done by hand.",
  },
  {
    id: "ruth-adeyemi.txt",
    text: "Ruth Adeyemi\n\nSkills\nSourdough, laminated dough, ordering, training of apprentices.\n\nExperience\nHead baker for " +
      "eight years; the oven is on at three in the morning.",
  },
];
