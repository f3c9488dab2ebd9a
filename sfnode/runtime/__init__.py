"""The running node: pumps the protocol machine, keeps links, trains off-loop, answers the control socket."""
