"""The transport over libp2p, through hivemind and its daemon p2pd; all their quirks are here."""
