"""The lab beside sfnode: the simulator, experiments, studies, baselines and benchmarks.

`sfnode` does not import the lab: the command line names the lab's commands as text, and loads them on use.
"""
