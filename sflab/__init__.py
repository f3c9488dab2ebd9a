"""The lab beside sfnode: the simulator, experiments, studies, baselines and benches.

Its libraries are the extra `lab`. Nothing in `sfnode` imports it: the command line names its commands as text
and loads them where it is installed.
"""
