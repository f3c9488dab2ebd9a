"""Views of a running node, for a terminal and a browser. They reach the node only through
`sfnode.control.client`."""
