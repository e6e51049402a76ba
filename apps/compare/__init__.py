"""`edgedec compare`: results of runs, devices, builds, bundles and runtimes side by side."""
