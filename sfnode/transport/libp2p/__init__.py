"""The transport over libp2p, through hivemind and its daemon p2pd, with all workarounds for both."""
